#include "shoal/train/trainer/log_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace shoal {

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string python_dict(const nlohmann::ordered_json& record) {
  std::string text = "{";
  for (const auto& [name, value] : record.items()) {
    if (text.size() > 1) text += ", ";
    text += fmt::format("'{}': ", name);
    if (value.is_number_float())
      text += python_repr(value.get<double>());
    else if (value.is_string())
      text += fmt::format("'{}'", value.get<std::string>());
    else if (value.is_boolean())
      text += value.get<bool>() ? "True" : "False";
    else if (value.is_null())
      text += "None";
    else
      text += value.dump();
  }
  return text + "}";
}

double round_to(double value, int digits) {
  if (!std::isfinite(value)) return value;
  // Formatting rounds the exact binary value correctly; multiplying by 10^n would not.
  const std::string text = fmt::format("{:.{}f}", value, digits);
  double rounded = value;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return rounded;
}

std::string format_count(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::ptrdiff_t first = value < 0 ? 1 : 0;  // behind the sign
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<std::size_t>(at), 1, ',');
  return digits;
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array units = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::string format_seconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

std::string progress_line(std::int64_t done, std::int64_t total, double seconds,
                          std::string_view unit, std::string_view detail, int width) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : INFINITY;
  const bool bytes = unit == "B";
  const auto amount = [&](std::int64_t count) {
    return bytes ? format_bytes(count) : std::to_string(count);
  };
  std::string speed = fmt::format("{:.3g} {}", rate, unit);
  if (bytes || rate >= 1000) {
    const auto whole = static_cast<std::int64_t>(std::min(rate, 1e15));
    speed = bytes ? format_bytes(whole) : fmt::format("{} {}", format_count(whole), unit);
  }
  std::string after = fmt::format("| {}/{} [{}<{}, {}/s", amount(done), amount(total),
                                  format_seconds(seconds), format_seconds(left), speed);
  const std::string before = fmt::format("{:3}%|", static_cast<int>(share * 100));
  const auto room = static_cast<int>(width) - static_cast<int>(before.size() + after.size()) - 1;
  int bar = std::clamp(room, 0, 24);
  const int with_detail = room - static_cast<int>(detail.size()) - 2;
  if (!detail.empty() && with_detail >= 4) {
    after += fmt::format(", {}", detail);
    bar = std::clamp(with_detail, 0, 24);
  }
  after += "]";
  static constexpr std::array eighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto ticks = static_cast<int>(share * bar * 8);
  std::string drawn;
  for (int i = 0; i < ticks / 8; ++i) drawn += "█";
  int used = ticks / 8;
  if (ticks % 8 != 0) {
    drawn += eighths[static_cast<std::size_t>(ticks % 8)];
    ++used;
  }
  drawn.append(static_cast<std::size_t>(std::max(0, bar - used)), ' ');
  return before + drawn + after;
}

}  // namespace shoal
