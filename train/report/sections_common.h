// Helpers shared by the sections. Not for other libraries.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/train/report/html.h"
#include "shoal/train/report/plot.h"
#include "shoal/train/report/sections.h"

namespace shoal::report {

// Cards in a grid of two columns, followed by the lines about missing values. A card alone in its
// row spans both columns.
class Cards {
 public:
  void add(const Plot& plot, bool wide = false) {
    if (plot.empty())
      missing_ += draw(plot);
    else
      cards_.push_back({plot, {}, wide});
  }
  void add_card(const std::string& title, const std::string& content, bool wide = false) {
    cards_.push_back({Plot{.title = title}, content, wide});
  }
  void add_line(const std::string& html) { missing_ += "<p class=\"missing\">" + html + "</p>\n"; }
  std::string html(const std::string& title) const;

 private:
  struct Card {
    Plot plot;            // if `content` is set, only its title is used
    std::string content;  // empty: a plot
    bool wide;
  };
  std::vector<Card> cards_;
  std::string missing_;
};

inline int colour_of_run(std::size_t index) {
  return static_cast<int>(index % static_cast<std::size_t>(kColours - 1));  // skips the grey colour
}
// With one run, curves are named by their content; with several, by their run.
inline std::string curve_name(Runs runs, const RunLog& run, const std::string& what) {
  if (runs.size() == 1) return what;
  return run.name + (what.empty() ? "" : ", " + what);
}

}  // namespace shoal::report
