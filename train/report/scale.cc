#include "shoal/train/report/scale.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "shoal/runtime/base/numbers.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::report {
namespace {

struct Measure {  // a unit, used for numbers of at least `size`
  double size;
  const char* name;
};
constexpr std::array kSeconds = {Measure{3600, "h"},  Measure{60, "min"},  Measure{1, "s"},
                                 Measure{1e-3, "ms"}, Measure{1e-6, "µs"}, Measure{1e-9, "ns"}};
constexpr double kKibi = 1024;
constexpr std::array kBytes = {Measure{kKibi * kKibi * kKibi * kKibi, "TiB"},
                               Measure{kKibi * kKibi * kKibi, "GiB"}, Measure{kKibi * kKibi, "MiB"},
                               Measure{kKibi, "KiB"}, Measure{1, "B"}};

template <std::size_t N>
Measure choose(const std::array<Measure, N>& measures, double largest) {
  for (const Measure& measure : measures)
    if (largest >= measure.size) return measure;
  return measures.back();
}

Measure measure_for(Unit unit, double largest) {
  if (unit == Unit::share) return {0.01, "%"};
  if (unit == Unit::bytes) return choose(kBytes, largest);
  if (unit == Unit::seconds) return largest == 0 ? Measure{1, "s"} : choose(kSeconds, largest);
  return {1, ""};
}

// 5e-05 -> 5e-5
std::string without_zeros_in_exponent(std::string text) {
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;
  std::size_t digits = e + 1;
  if (text[digits] == '+') text.erase(digits, 1);
  if (text[digits] == '-') ++digits;
  while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  return text;
}

std::string with_thousands(const std::string& digits) {
  const std::size_t point = digits.find('.');
  const std::string whole = digits.substr(0, point);
  const auto number = parse_number<std::int64_t>(whole);
  if (!number) return digits;
  const std::string grouped = format_count(*number);
  const std::string sign = whole.starts_with("-") && !grouped.starts_with("-") ? "-" : "";
  return sign + grouped + (point == std::string::npos ? "" : digits.substr(point));
}

// Four significant digits.
std::string plain_number(double value) {
  const double size = std::abs(value);
  if (value == 0) return "0";
  if (size >= 1e15 || size < 1e-4) return without_zeros_in_exponent(fmt::format("{:.4g}", value));
  if (size >= 1000) return with_thousands(fmt::format("{:.0f}", value));
  const int decimals = size >= 1 ? 3 - static_cast<int>(std::floor(std::log10(size))) : 4;
  return fmt::format("{:.{}f}", value, size < 0.01 ? 6 : decimals);
}

// Step between ticks: a multiple of 1, 2 or 5 x 10^k.
double round_step(double span, int wanted) {
  const double raw = span / std::max(wanted, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

std::vector<double> linear_ticks(double low, double high, int wanted) {
  std::vector<double> at;
  for (int more = std::max(wanted, 2); more <= 64 && at.size() < 2; more *= 2) {
    at.clear();
    const double step = round_step(high - low, more);
    const double slack = 1e-9 * (high - low);
    for (double k = std::ceil((low - slack) / step); k * step <= high + slack; ++k)
      at.push_back(k * step);
  }
  return at;
}

std::vector<double> log_ticks(double low, double high, int wanted) {
  const double first = std::floor(std::log10(low)), last = std::ceil(std::log10(high));
  const double every = std::max(1.0, std::ceil((last - first) / std::max(wanted, 2)));
  const bool few = last - first <= 3;
  std::vector<double> at;
  for (double power = first; power <= last; power += every)
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10, power);
      if ((factor == 1.0 || few) && tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9))
        at.push_back(tick);
    }
  return at;
}

// Label for ticks `step` apart; `largest` is the largest of them.
std::string tick_label(double value, double step, double largest) {
  if (value == 0) return "0";
  if (largest >= 1e7 || largest < 1e-3)
    return without_zeros_in_exponent(fmt::format("{:.4g}", value));
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 8);
  return with_thousands(fmt::format("{:.{}f}", value, decimals));
}

}  // namespace

std::string format_number(double value, Unit unit) {
  if (!std::isfinite(value)) return "not finite";
  if (unit == Unit::count) return with_thousands(fmt::format("{:.0f}", value));
  if (unit == Unit::number) return plain_number(value);
  if (unit == Unit::share) return fmt::format("{:.1f} %", value * 100);
  const Measure measure = measure_for(unit, std::abs(value));
  const double shown = value / measure.size;
  if (unit == Unit::bytes && measure.size == 1) return fmt::format("{:.0f} B", shown);
  const double size = std::abs(shown);
  return fmt::format("{:.{}f} {}", shown, size >= 100 ? 0 : size >= 10 ? 1 : 2, measure.name);
}

double Axis::place(double value) const {
  if (logarithmic)
    return (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low));
  return (value - low) / (high - low);
}

Ticks Axis::ticks(int wanted) const {
  Ticks ticks;
  const double largest = std::max(std::abs(low), std::abs(high));
  if (logarithmic) {
    ticks.at = log_ticks(low, high, wanted);
    if (ticks.at.size() < 2) ticks.at = linear_ticks(low, high, wanted);
    for (const double at : ticks.at)
      ticks.labels.push_back(unit == Unit::number || unit == Unit::count
                                 ? without_zeros_in_exponent(fmt::format("{:.3g}", at))
                                 : format_number(at, unit));
    return ticks;
  }
  const Measure measure = measure_for(unit, largest);
  ticks.unit = measure.name;
  ticks.at = linear_ticks(low / measure.size, high / measure.size, wanted);
  const double step = ticks.at.size() > 1 ? ticks.at[1] - ticks.at[0] : 1;
  for (double& at : ticks.at) {
    ticks.labels.push_back(tick_label(at, step, largest / measure.size));
    at *= measure.size;
  }
  // Counts have no ticks between whole numbers.
  if (unit == Unit::count && step < 1) {
    Ticks whole{.unit = ticks.unit};
    for (double at = std::ceil(low) + 0.0; at <= high; ++at) {  // + 0.0 turns -0 into 0
      whole.at.push_back(at);
      whole.labels.push_back(fmt::format("{:.0f}", at));
    }
    return whole;
  }
  return ticks;
}

Axis make_axis(const Range& range, const AxisRules& rules) {
  Axis axis{.low = range.low, .high = range.high, .unit = rules.unit};
  if (range.empty) return {.unit = rules.unit};
  axis.logarithmic = rules.may_be_logarithmic && range.low > 0 && range.high / range.low > 1000;
  if (axis.logarithmic) {
    const double air = std::pow(10, 0.04 * (std::log10(range.high) - std::log10(range.low)));
    axis.low = std::max(axis.low / air, 1e-307);
    axis.high = std::min(axis.high * air, 1.7e308);
    return axis;
  }
  if (rules.from_zero) axis.low = std::min(axis.low, 0.0), axis.high = std::max(axis.high, 0.0);
  // Differences below the precision of a double cannot be drawn.
  const double least = 1e-9 * std::max(std::abs(axis.low), std::abs(axis.high));
  if (axis.high - axis.low <= least) {
    const double half = axis.low == 0 ? 0.5 : std::abs(axis.low) * 0.05;
    axis.high += half;
    if (!rules.from_zero || axis.low < 0) axis.low -= half;
    return axis;
  }
  if (rules.tight) return axis;
  const double air = 0.04 * (axis.high - axis.low);
  axis.high += air;
  if (!(rules.from_zero && axis.low == 0)) axis.low -= air;
  return axis;
}

}  // namespace shoal::report
