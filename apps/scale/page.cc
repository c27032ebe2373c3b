// The study as a page that needs nothing else: SVG by hand, no scripts, no other files.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <set>

#include "study.h"
#include <fmt/format.h>

namespace shoal::app {
namespace {

constexpr std::array kColours = {"#1b6ca8", "#d1495b", "#2e933c", "#8f5bb0", "#c98a00", "#3a3a3a"};
constexpr double kWidth = 460, kHeight = 300, kLeft = 62, kRight = 14, kTop = 34, kBottom = 44;

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return safe;
}

// 1, 2 or 5 times a power of ten: at most six of it cover `most`.
double tick_of(double most) {
  const double power = std::pow(10, std::floor(std::log10(most / 6)));
  for (const double times : {1.0, 2.0, 5.0})
    if (most / (power * times) <= 6) return power * times;
  return power * 10;
}

struct Line {
  std::string label;
  std::vector<std::pair<double, double>> points;  // ranks, value
};

// The lines of each (workers, batch), in the rows' order.
std::vector<Line> lines_of(const std::vector<StudyRow>& rows,
                           const std::function<double(const StudyRow&)>& value) {
  std::vector<Line> lines;
  for (const StudyRow& row : rows) {
    const StudyCell& cell = row.result.cell;
    const std::string label = fmt::format("{} workers, batch {}", cell.workers, cell.batch);
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const Line& one) { return one.label == label; });
    if (line == lines.end()) line = lines.insert(lines.end(), {label, {}});
    line->points.emplace_back(static_cast<double>(cell.ranks), value(row));
  }
  for (Line& line : lines) std::sort(line.points.begin(), line.points.end());
  return lines;
}

std::string chart(const std::string& title, const std::vector<Line>& lines, double least_top) {
  std::set<double> ranks;
  double most = least_top;
  for (const Line& line : lines)
    for (const auto& [x, y] : line.points) {
      ranks.insert(x);
      most = std::max(most, y);
    }
  const double tick = tick_of(most), top = std::ceil(most / tick - 1e-9) * tick;
  const double first = *ranks.begin(), last = *ranks.rbegin();
  const auto x_of = [&](double x) {  // by doublings
    const double share = last > first ? std::log(x / first) / std::log(last / first) : 0.5;
    return kLeft + share * (kWidth - kLeft - kRight);
  };
  const auto y_of = [&](double y) {
    return kHeight - kBottom - y / top * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<text x=\"{}\" y=\"18\" class=\"title\">{}</text>\n",
      kWidth, kHeight, escaped(title), kLeft, escaped(title));
  for (double y = 0; y <= top * (1 + 1e-9); y += tick)
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text class=\"tick\" text-anchor=\"end\" x=\"{}\" y=\"{:.1f}\">{:.6g}</text>\n",
        kLeft, kWidth - kRight, y_of(y), y_of(y), kLeft - 6, y_of(y) + 4, y);
  for (const double x : ranks)
    svg +=
        fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                    x_of(x), kHeight - kBottom + 18, x);
  svg += fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">ranks</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 8);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string path;
    for (const auto& [x, y] : lines[i].points) {
      path += fmt::format("{}{:.1f},{:.1f} ", path.empty() ? "M" : "L", x_of(x), y_of(y));
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}: {:.6g} on {} "
          "ranks</title></circle>\n",
          x_of(x), y_of(y), colour, escaped(lines[i].label), y, x);
    }
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path,
                       colour, i < kColours.size() ? "" : " stroke-dasharray=\"5 3\"");
  }
  return svg + "</svg>\n";
}

std::string legend(const std::vector<Line>& lines) {
  std::string html = "<p class=\"legend\">";
  for (std::size_t i = 0; i < lines.size(); ++i)
    html += fmt::format("<span><b style=\"background:{}\"></b>{}</span> ",
                        kColours[i % kColours.size()], escaped(lines[i].label));
  return html + "</p>\n";
}

std::string table(const std::vector<StudyRow>& rows) {
  std::string html =
      "<table><tr><th>ranks<th>workers<th>batch<th>steps<th>samples/s<th>gain over 0 workers"
      "<th>efficiency<th>stall share</tr>\n";
  for (const StudyRow& row : rows) {
    const StudyCell& cell = row.result.cell;
    const bool has_gain = cell.workers > 0 && !std::isnan(row.gain);
    html +=
        fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td>{:.1f}<td>{}<td>{:.2f}<td>{:.2f}</tr>\n",
                    cell.ranks, cell.workers, cell.batch, cell.steps, row.result.samples_per_second,
                    has_gain ? fmt::format("{:+.0f} %", row.gain * 100) : "", row.efficiency,
                    row.result.stall_share);
  }
  return html + "</table>\n";
}

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;"
    "color:#222}svg{width:100%;max-width:480px}.charts{display:flex;flex-wrap:wrap;gap:1em}"
    ".grid{stroke:#ddd}.tick{font-size:12px;fill:#555}.title{font-size:14px;font-weight:600}"
    "table{border-collapse:collapse}td,th{padding:.25em .8em;text-align:right;border-bottom:1px "
    "solid #ddd}.legend b{display:inline-block;width:.8em;height:.8em;margin:0 .4em 0 1em}";

}  // namespace

std::string study_page(const std::vector<StudyRow>& rows, std::int64_t examples,
                       const std::string& title) {
  const auto speed =
      lines_of(rows, [](const StudyRow& row) { return row.result.samples_per_second; });
  const auto efficiency = lines_of(rows, [](const StudyRow& row) { return row.efficiency; });
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<style>{1}</style></head><body>\n<h1>{0}</h1>\n"
      "<p>{2} examples in every run. Efficiency is T(N)/(N&middot;T(1)) beside the fewest ranks, "
      "at "
      "the same workers and batch. Stall share is the time that steps waited for the loader.</p>\n"
      "{3}<div class=\"charts\">\n{4}{5}</div>\n{6}</body></html>\n",
      escaped(title), kStyle, examples, legend(speed), chart("Samples a second", speed, 1e-9),
      chart("Efficiency", efficiency, 1.0), table(rows));
}

}  // namespace shoal::app
