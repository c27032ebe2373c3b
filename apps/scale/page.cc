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

// Adds a curve over ranks for each (workers, batch), in the order of the rows.
void add_curves(Plot& plot, const std::vector<StudyRow>& rows,
                const std::function<double(const StudyRow&)>& value) {
  std::set<double> ranks;
  for (const StudyRow& row : rows) {
    const StudyCell& cell = row.result.cell;
    const std::string name = fmt::format("{} workers, batch {}", cell.workers, cell.batch);
    auto curve = std::ranges::find(plot.curves, name, &Curve::name);
    if (curve == plot.curves.end()) {
      const auto number = static_cast<int>(plot.curves.size());
      curve = plot.curves.insert(plot.curves.end(), {.name = name,
                                                     .colour = number % report::kColours,
                                                     .dashed = number >= report::kColours,
                                                     .dots = true});
    }
    const auto at = static_cast<double>(cell.ranks);
    const auto place = std::ranges::lower_bound(curve->values.x, at) - curve->values.x.begin();
    curve->values.x.insert(curve->values.x.begin() + place, at);
    curve->values.y.insert(curve->values.y.begin() + place, value(row));
    ranks.insert(at);
  }
  if (ranks.size() > 1) plot.x_at.assign(ranks.begin(), ranks.end());
}

std::string table(const std::vector<StudyRow>& rows) {
  report::Table all{.head = {"run", "ranks", "workers", "batch", "steps", "samples/s",
                             "gain over 0 workers", "efficiency", "stall share"}};
  for (const StudyRow& row : rows) {
    const StudyCell& cell = row.result.cell;
    const bool has_gain = cell.workers > 0 && !std::isnan(row.gain);
    all.rows.push_back({cell.name(), std::to_string(cell.ranks), std::to_string(cell.workers),
                        std::to_string(cell.batch), std::to_string(cell.steps),
                        fmt::format("{:.1f}", row.result.samples_per_second),
                        has_gain ? fmt::format("{:+.0f} %", row.gain * 100) : "",
                        fmt::format("{:.2f}", row.efficiency),
                        fmt::format("{:.2f}", row.result.stall_share)});
  }
  return all.html();
}

}  // namespace

std::string study_page(const std::vector<StudyRow>& rows, std::int64_t examples,
                       const std::string& title) {
  Plot speed{.title = "Samples a second",
             .unit_name = "samples/s",
             .y = {.from_zero = true},
             .x_name = "ranks"};
  add_curves(speed, rows, [](const StudyRow& row) { return row.result.samples_per_second; });
  Plot efficiency{.title = "Efficiency", .y = {.from_zero = true}, .x_name = "ranks"};
  add_curves(efficiency, rows, [](const StudyRow& row) { return row.efficiency; });
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
      "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n"
      "<style>{1}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n<p>{2} examples in every run. "
      "Efficiency is T(N)/(N&middot;T(1)) beside the fewest ranks, at the same workers and batch. "
      "Stall share is the time that steps waited for the loader.</p>\n<div class=\"grid\">\n{3}{4}"
      "</div>\n<h2>Runs</h2>\n<section class=\"card\">{5}</section>\n</main>\n</body>\n</html>\n",
      report::escape(title), report::kStyle, examples, draw(speed), draw(efficiency), table(rows));
}

}  // namespace shoal::app
