// Renders the study as a page, with the plots and tables of `shoal report`.
#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "study.h"
#include <fmt/format.h>

#include "shoal/train/report/html.h"
#include "shoal/train/report/plot.h"
#include "shoal/train/report/style.h"

namespace shoal::app {
namespace {

using report::Curve;
using report::Plot;

std::string curve_name(const StudyCell& cell, const StudyOptions& o) {
  return fmt::format("{} workers, batch {}{}", cell.workers, cell.batch,
                     o.backends.size() > 1 ? ", " + cell.backend : "");
}

Curve& add_curve(Plot& plot, const std::string& name) {
  const auto number = static_cast<int>(plot.curves.size());
  plot.curves.push_back({.name = name,
                         .colour = number % report::kColours,
                         .dashed = number / report::kColours % 2 == 1,
                         .dots = true});
  return plot.curves.back();
}

// Adds a curve over ranks for each (workers, batch, backend), in the order of the rows.
void add_curves(Plot& plot, const std::vector<StudyRow>& rows, const StudyOptions& o,
                const std::function<double(const StudyRow&)>& value) {
  std::set<double> ranks;
  for (const StudyRow& row : rows) {
    const std::string name = curve_name(row.result.cell, o);
    const auto found = std::ranges::find(plot.curves, name, &Curve::name);
    Curve& curve = found == plot.curves.end() ? add_curve(plot, name) : *found;
    const auto at = static_cast<double>(row.result.cell.ranks);
    const auto place = std::ranges::lower_bound(curve.values.x, at) - curve.values.x.begin();
    curve.values.x.insert(curve.values.x.begin() + place, at);
    curve.values.y.insert(curve.values.y.begin() + place, value(row));
    ranks.insert(at);
  }
  if (ranks.size() > 1) plot.x_at.assign(ranks.begin(), ranks.end());
}

// The losses of all runs over the examples that each had seen.
Plot loss_plot(const std::vector<StudyRow>& rows, const StudyOptions& o) {
  Plot plot{.title = "Loss", .x_name = "examples", .missing = "no run has logged a loss"};
  for (const StudyRow& row : rows) {
    Curve& curve = add_curve(
        plot, fmt::format("{} rank{}, {}", row.result.cell.ranks,
                          row.result.cell.ranks == 1 ? "" : "s", curve_name(row.result.cell, o)));
    curve.dots = false;
    for (const auto& [examples, loss] : row.result.losses) {
      curve.values.x.push_back(examples);
      curve.values.y.push_back(loss);
    }
  }
  return plot;
}

std::string table(const std::vector<StudyRow>& rows, const StudyOptions& o) {
  report::Table all;
  for (auto& row : study_cells(rows, o)) {
    for (std::string& cell : row) cell = report::escape(cell);
    (all.head.empty() ? all.head : all.rows.emplace_back()) = std::move(row);
  }
  return all.html();
}

}  // namespace

std::string study_page(const std::vector<StudyRow>& rows, const Study& study,
                       const StudyOptions& o) {
  Plot speed{.title = "Samples a second",
             .unit_name = "samples/s",
             .y = {.from_zero = true},
             .x_name = "ranks"};
  add_curves(speed, rows, o, [](const StudyRow& row) { return row.result.samples_per_second; });
  Plot efficiency{.title = "Efficiency", .y = {.from_zero = true}, .x_name = "ranks"};
  add_curves(efficiency, rows, o, [](const StudyRow& row) { return row.efficiency; });
  const std::size_t missing = study.cells.size() - rows.size();
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n{2}<p>{3} examples in every run. "
      "Efficiency is T(N)/(N&middot;T(1)) beside the fewest ranks, of otherwise equal runs. "
      "Stall share is the time that steps waited for the loader. Node seconds are those of all "
      "nodes that are paid for.</p>\n<div class=\"grid\">\n{4}{5}{6}</div>\n<h2>Runs</h2>\n"
      "<section class=\"card\">{7}</section>\n</main>\n</body>\n</html>\n",
      report::escape(o.name), report::kStyle,
      missing == 0 ? ""
                   : fmt::format("<p class=\"remark\">{} of {} runs are still missing.</p>\n",
                                 missing, study.cells.size()),
      study.examples, draw(speed), draw(efficiency), draw(loss_plot(rows, o), true),
      table(rows, o));
}

}  // namespace shoal::app
