// Plots as inline SVG: lines over steps, with logged values pale behind their moving average, or
// stacked areas. Colours are classes (c0.., f0..), for which the style sheet has a light and a dark
// value. Size is bounded: about 700 points per curve.
#pragma once

#include <string>
#include <vector>

#include "shoal/train/report/scale.h"
#include "shoal/train/report/series.h"

namespace shoal::report {

inline constexpr int kColours = 7;      // number of colours before they repeat
inline constexpr int kGrey = kColours;  // for curves that only serve as a comparison

struct Curve {
  std::string name;
  int colour = 0;
  bool dashed = false;
  bool dots = false;    // draw each value; for few values
  bool smooth = false;  // draws a moving average over the values if there are enough points
  Series values = {};
  std::vector<double> not_finite = {};  // x of values that were NaN or infinite
};

struct Plot {
  std::string title;
  std::string unit_name = {};  // "tokens/s"; empty: the axis shows the unit
  AxisRules y = {};
  std::vector<Curve> curves = {};
  bool stacked = false;  // draws areas on top of each other; curves must have the same x
  std::string x_name = "step";
  std::vector<double> x_at = {};  // x ticks at these values, with a logarithmic axis
  std::string missing = {};       // shown instead of the plot if no curve has a value
  std::string note = {};          // shown below the plot

  bool empty() const;
};

// A <figure>: title, legend, one <svg>, note. `wide`: spans both columns of a page on a desktop,
// with a narrower drawing for phones.
std::string draw(const Plot& plot, bool wide = false);

struct Part {
  std::string name;
  double value = 0;
  int colour = 0;
};
// A horizontal bar of parts of `whole`, each with its share as a hover title; the rest stays empty.
std::string draw_bar(const std::vector<Part>& parts, double whole, Unit unit);

}  // namespace shoal::report
