// Plots as inline SVG: lines over steps with what was logged pale behind its moving average, or
// areas on each other. Colours are classes (c0.., f0..) that the page's style sheet gives a light
// and a dark value. Size is bounded whatever a curve has: at most some 700 points of each.
#pragma once

#include <string>
#include <vector>

#include "shoal/train/report/scale.h"
#include "shoal/train/report/series.h"

namespace shoal::report {

inline constexpr int kColours = 7;      // before they come again
inline constexpr int kGrey = kColours;  // of what is only there to compare with

struct Curve {
  std::string name;
  int colour = 0;
  bool dashed = false;
  bool dots = false;    // few numbers, each of which matters
  bool smooth = false;  // noisy: an average in front, where there are enough points
  Series values = {};
  std::vector<double> not_finite = {};  // x of numbers that were NaN or infinite
};

struct Plot {
  std::string title;
  std::string unit_name = {};  // "tokens/s"; empty: the axis says
  AxisRules y = {};
  std::vector<Curve> curves = {};
  bool stacked = false;  // curves have the same x
  std::string x_name = "step";
  std::vector<double> x_at = {};  // these ticks, equally far from each other in ratio
  std::string missing = {};       // the line that stands here where no curve has a number
  std::string note = {};          // below

  bool empty() const;
};

// A <figure>: title, legend, one <svg>, note. `wide`: over both columns of a page on a desktop,
// with a narrower drawing of the same for phones.
std::string draw(const Plot& plot, bool wide = false);

struct Part {
  std::string name;
  double value = 0;
  int colour = 0;
};
// A horizontal bar of parts of `whole`, each with its share as a hover title; what is left stays
// empty.
std::string draw_bar(const std::vector<Part>& parts, double whole, Unit unit);

}  // namespace shoal::report
