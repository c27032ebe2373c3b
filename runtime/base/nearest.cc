#include "shoal/runtime/base/nearest.h"

#include <algorithm>
#include <vector>

namespace shoal {

std::int64_t edit_distance(std::string_view a, std::string_view b) {
  // Far beyond any name: a hostile one must not cost quadratic time.
  constexpr std::size_t kLongest = 1000;
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  std::vector<std::int64_t> before, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<std::int64_t>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<std::int64_t>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
}

std::string nearest_name(std::string_view name, std::span<const std::string> names) {
  const auto closest = std::ranges::min_element(
      names, {}, [name](const std::string& other) { return edit_distance(name, other); });
  return closest == names.end() ? std::string() : *closest;
}

}  // namespace shoal
