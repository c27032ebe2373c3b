#include "collective_perf/bytes.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal::perf {

std::int64_t parse_bytes(const std::string& text) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  for (char& letter : unit) letter = static_cast<char>(std::tolower(letter));
  constexpr std::string_view kUnits = "kmgt";
  double scale = 1;
  bool valid = problem == std::errc{} && number >= 0;
  if (valid && !unit.empty()) {
    const auto place = kUnits.find(unit[0]);
    const std::string rest = unit.substr(1);
    valid = place != std::string_view::npos && (rest.empty() || rest == "b" || rest == "ib");
    if (valid) scale = std::pow(1024.0, static_cast<double>(place + 1));
  }
  if (!valid || number * scale > 1e15)
    throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is not a size", text),
                "write bytes, or a number with k, M or G");
  return static_cast<std::int64_t>(number * scale);
}

}  // namespace shoal::perf
