#include "shoal/train/report/plot.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "shoal/train/report/html.h"

namespace shoal::report {
namespace {

constexpr std::size_t kRawPoints = 600, kSmoothPoints = 240, kAreas = 160, kStrips = 80,
                      kMarks = 40;
constexpr std::size_t kFewForSmoothing = 30;

bool has_number(const Series& series) {
  return std::ranges::any_of(series.y, [](double y) { return std::isfinite(y); });
}

// Number of logged points to average over; 0: too few points for an average.
double smoothing_points(const Curve& curve) {
  const std::size_t count = curve.values.x.size();
  if (!curve.smooth || count < kFewForSmoothing) return 0;
  return std::clamp(static_cast<double>(count) / 20, 5.0, 1000.0);
}

struct Size {
  double width = 540, height = 290;
  double left = 62, right = 16, top = 14, bottom = 42;
};
constexpr Size kNarrow{}, kWide{.width = 1120, .height = 340, .left = 62};

class Canvas {
 public:
  Canvas(const Plot& plot, const Size& size) : plot_(plot), size_(size) {
    Range xs, ys;
    for (const Curve& curve : plot.curves) {
      xs.take(curve.values.x);
      if (!plot.stacked) ys.take(curve.values.y);
    }
    if (plot.stacked) {
      stack();
      for (const auto& layer : layers_) ys.take(layer);
    }
    const bool ratios = !plot.x_at.empty();
    x_ = make_axis(xs, {.unit = Unit::count, .tight = !ratios});
    if (ratios) {
      const double air = std::pow(plot.x_at.back() / plot.x_at.front(), 0.06);
      x_ = {.low = plot.x_at.front() / air, .high = plot.x_at.back() * air, .logarithmic = true};
    }
    y_ = make_axis(ys, plot.y);
  }

  std::string unit() const { return y_.ticks(5).unit; }

  std::string svg(const char* name) const {
    std::string out = fmt::format(
        "<svg class=\"plot {}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", name,
        size_.width, size_.height, escape(description()));
    axes(out);
    if (plot_.stacked)
      areas(out);
    else
      lines(out);
    strips(out);
    return out + "</svg>\n";
  }

 private:
  double px(double x) const {
    return size_.left + x_.place(x) * (size_.width - size_.left - size_.right);
  }
  double py(double y) const {
    return size_.height - size_.bottom - y_.place(y) * (size_.height - size_.bottom - size_.top);
  }

  std::string description() const {
    std::string text = plot_.title + " by " + plot_.x_name;
    for (const Curve& curve : plot_.curves)
      for (std::size_t i = curve.values.y.size(); i-- > 0;)
        if (std::isfinite(curve.values.y[i])) {
          text += fmt::format("; {} at last {}", curve.name,
                              format_number(curve.values.y[i], plot_.y.unit));
          break;
        }
    return text;
  }

  void axes(std::string& out) const {
    const double bottom = size_.height - size_.bottom, right = size_.width - size_.right;
    const Ticks ys = y_.ticks(5);
    for (std::size_t i = 0; i < ys.at.size(); ++i) {
      const double y = py(ys.at[i]);
      out +=
          fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", size_.left, y, right);
      out += fmt::format("<text class=\"t e\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                         size_.left - 8, y + 4, ys.labels[i]);
    }
    Ticks xs = x_.ticks(size_.width > 800 ? 10 : 5);
    if (!plot_.x_at.empty()) {
      xs = {.at = plot_.x_at};
      for (const double x : xs.at) xs.labels.push_back(format_number(x, Unit::count));
    }
    out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", size_.left, bottom,
                       right);
    for (std::size_t i = 0; i < xs.at.size(); ++i) {
      const double x = px(xs.at[i]);
      out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v5\"/>", x, bottom);
      out += fmt::format("<text class=\"t m\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x,
                         bottom + 19, xs.labels[i]);
    }
    out += fmt::format("<text class=\"t e q\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", right,
                       bottom + 36, escape(plot_.x_name));
  }

  void line(std::string& out, const Series& series, const std::string& classes) const {
    std::string path;
    bool open = false;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      const double y = series.y[i];
      if (!std::isfinite(y)) {
        open = false;
        continue;
      }
      const bool alone = !open && (i + 1 == series.x.size() || !std::isfinite(series.y[i + 1]));
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}{}", open ? 'L' : 'M',
                     px(series.x[i]), py(y), alone ? "h0" : "");
      open = true;
    }
    if (!path.empty()) out += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", classes, path);
  }

  void lines(std::string& out) const {
    for (const Curve& curve : plot_.curves)
      if (smoothing_points(curve) > 0)
        line(out, thinned(curve.values, kRawPoints), fmt::format("c pale c{}", curve.colour));
    for (const Curve& curve : plot_.curves) {
      const double points = smoothing_points(curve);
      const std::string classes = fmt::format("c c{}{}", curve.colour, curve.dashed ? " dash" : "");
      const Series shown = points > 0 ? thinned(smoothed(curve.values, points), kSmoothPoints)
                                      : thinned(curve.values, kRawPoints);
      line(out, shown, classes);
      const bool dots = curve.dots ? shown.x.size() <= 60 : shown.x.size() <= 2;
      for (std::size_t i = 0; dots && i < shown.x.size(); ++i)
        if (std::isfinite(shown.y[i]))
          out += fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"/>",
                             curve.colour, px(shown.x[i]), py(shown.y[i]));
      marks(out, curve);
    }
  }

  // Marks NaN and infinite values with crosses at the upper edge.
  void marks(std::string& out, const Curve& curve) const {
    const std::size_t count = curve.not_finite.size();
    for (std::size_t k = 0; k < std::min(count, kMarks); ++k) {
      const double x = curve.not_finite[k * count / std::min(count, kMarks)];
      out += fmt::format("<path class=\"c c{} bad\" d=\"M{:.1f} {:.1f}l6 6m-6 0l6 -6\"/>",
                         curve.colour, px(x) - 3, size_.top - 8);
    }
  }

  void stack() {
    std::vector<double> below;
    for (const Curve& curve : plot_.curves) {
      const Series shown = averaged(curve.values, kAreas);
      stack_x_ = shown.x;
      below.resize(shown.x.size(), 0);
      for (std::size_t i = 0; i < below.size(); ++i)
        if (std::isfinite(shown.y[i])) below[i] += shown.y[i];
      layers_.push_back(below);
    }
  }

  void areas(std::string& out) const {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      std::string path;
      const std::size_t count = stack_x_.size();
      for (std::size_t i = 0; i < count; ++i)
        fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", i == 0 ? 'M' : 'L',
                       px(stack_x_[i]), py(layers_[layer][i]));
      for (std::size_t i = count; i-- > 0;)
        fmt::format_to(std::back_inserter(path), "L{:.1f} {:.1f}", px(stack_x_[i]),
                       py(layer == 0 ? y_.low : layers_[layer - 1][i]));
      out +=
          fmt::format("<path class=\"area f{}\" d=\"{}z\"/>\n", plot_.curves[layer].colour, path);
    }
  }

  // Draws hover strips around at most kStrips x of the longest curve. Each strip shows the curves'
  // values there.
  void strips(std::string& out) const {
    const Curve* longest = nullptr;
    for (const Curve& curve : plot_.curves)
      if (longest == nullptr || curve.values.x.size() > longest->values.x.size()) longest = &curve;
    if (longest == nullptr) return;
    const std::vector<double>& all = longest->values.x;
    const std::size_t strips = std::min(all.size(), kStrips);
    std::vector<double> centres;
    for (std::size_t k = 0; k < strips; ++k)
      centres.push_back(all[strips == 1 ? 0 : k * (all.size() - 1) / (strips - 1)]);
    const double left = size_.left, right = size_.width - size_.right;
    for (std::size_t k = 0; k < strips; ++k) {
      const double here = px(centres[k]);
      const double from = k == 0 ? left : (px(centres[k - 1]) + here) / 2;
      const double to = k + 1 == strips ? right : (here + px(centres[k + 1])) / 2;
      std::string text;
      for (const Curve& curve : plot_.curves) text += value_near(curve, centres[k], from, to);
      if (text.empty()) continue;
      out += fmt::format(
          "<rect class=\"s\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"><title>"
          "{} {}{}</title></rect>\n",
          from, size_.top, std::max(to - from, 1.0), size_.height - size_.top - size_.bottom,
          escape(plot_.x_name), format_number(centres[k], Unit::count), text);
    }
  }

  // "\nname: value" of the point nearest to x, if it is in the strip.
  std::string value_near(const Curve& curve, double x, double from, double to) const {
    const std::vector<double>& all = curve.values.x;
    if (all.empty()) return {};
    auto at = static_cast<std::size_t>(std::ranges::lower_bound(all, x) - all.begin());
    if (at == all.size() || (at > 0 && x - all[at - 1] < all[at] - x)) --at;
    const double place = px(all[at]);
    if (place < from - 0.1 || place > to + 0.1) return {};
    const double y = curve.values.y[at];
    if (!std::isfinite(y) && std::ranges::find(curve.not_finite, all[at]) == curve.not_finite.end())
      return {};
    return fmt::format("\n{}: {}", escape(curve.name), format_number(y, plot_.y.unit));
  }

  const Plot& plot_;
  Size size_;
  Axis x_, y_;
  std::vector<double> stack_x_;
  std::vector<std::vector<double>> layers_;  // upper edges
};

std::string legend(const Plot& plot) {
  std::string text = "<ul class=\"legend\">";
  for (const Curve& curve : plot.curves)
    text += fmt::format("<li>{}{}</li>", swatch(curve.colour, curve.dashed, plot.stacked),
                        escape(curve.name));
  return text + "</ul>\n";
}

std::string notes(const Plot& plot) {
  std::string text = plot.note;
  const auto add = [&text](const std::string& sentence) {
    text += (text.empty() ? "" : " ") + sentence;
  };
  double points = 0;
  for (const Curve& curve : plot.curves) points = std::max(points, smoothing_points(curve));
  if (points > 0)
    add(fmt::format("Bold: moving average over about {:.0f} records; pale: as logged.", points));
  for (const Curve& curve : plot.curves)
    if (const std::size_t count = curve.not_finite.size(); count > 0)
      add(fmt::format("× {}: {} not finite, first at {} {}.", escape(curve.name),
                      count == 1
                          ? "1 record is"
                          : format_number(static_cast<double>(count), Unit::count) + " records are",
                      plot.x_name, format_number(curve.not_finite.front(), Unit::count)));
  return text.empty() ? text : "<p class=\"note\">" + text + "</p>\n";
}

}  // namespace

bool Plot::empty() const {
  return std::ranges::none_of(curves, [](const Curve& curve) { return has_number(curve.values); });
}

std::string draw(const Plot& whole, bool wide) {
  if (whole.empty())
    return fmt::format("<p class=\"missing\"><b>{}</b>: {}</p>\n", escape(whole.title),
                       escape(whole.missing));
  Plot plot = whole;
  std::erase_if(plot.curves, [](const Curve& curve) {
    return curve.not_finite.empty() && !has_number(curve.values);
  });
  const Canvas narrow(plot, kNarrow);
  const std::string unit = plot.unit_name.empty() ? narrow.unit() : plot.unit_name;
  std::string text = fmt::format(
      "<figure class=\"card{}\">\n<figcaption><h3>{}</h3>{}</figcaption>\n", wide ? " both" : "",
      escape(plot.title), unit.empty() ? "" : fmt::format("<span>{}</span>", escape(unit)));
  if (whole.curves.size() > 1) text += legend(plot);
  if (wide) text += Canvas(plot, kWide).svg("on-wide");
  text += narrow.svg(wide ? "on-narrow" : "");
  return text + notes(plot) + "</figure>\n";
}

std::string draw_bar(const std::vector<Part>& parts, double whole, Unit unit) {
  constexpr double kLength = 1000;
  std::string text =
      "<svg class=\"bar\" viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"";
  for (const Part& part : parts)
    text += fmt::format("{} {}; ", escape(part.name), format_number(part.value, unit));
  text += "\"><rect class=\"rest\" width=\"1000\" height=\"20\"/>";
  double at = 0;
  for (const Part& part : parts) {
    if (!(part.value > 0) || !(whole > 0)) continue;
    const double length = std::min(part.value / whole * kLength, kLength - at);
    text += fmt::format(
        "<rect class=\"f{}\" x=\"{:.2f}\" width=\"{:.2f}\" height=\"20\"><title>{}: {} ({})</title>"
        "</rect>",
        part.colour, at, length, escape(part.name), format_number(part.value, unit),
        format_number(part.value / whole, Unit::share));
    at += length;
  }
  return text + "</svg>";
}

}  // namespace shoal::report
