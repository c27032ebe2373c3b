#include "shoal/runtime/base/nearest.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

}  // namespace

std::int64_t edit_distance(std::string_view a, std::string_view b) {
  // Far longer than any name, so that a hostile one does not cost quadratic time.
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
  const std::string wanted = lower(name);
  const std::string* nearest = nullptr;
  std::int64_t least = 0;
  for (const std::string& other : names) {
    const auto [shorter, longer] = std::minmax({std::ssize(name), std::ssize(other)});
    // The distance is at least the difference in length, so most names can be skipped.
    const std::int64_t at_least = longer - shorter;
    if (2 * at_least > longer || (nearest != nullptr && at_least >= least)) continue;
    const std::int64_t distance = std::max(at_least, edit_distance(wanted, lower(other)));
    if (2 * distance > longer || (nearest != nullptr && distance >= least)) continue;
    nearest = &other;
    least = distance;
  }
  return nearest == nullptr ? std::string() : *nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> names,
                         std::string_view otherwise) {
  const std::string nearest = nearest_name(name, names);
  return nearest.empty() ? std::string(otherwise) : fmt::format("did you mean {}?", nearest);
}

std::string names_there_are(std::string_view name, std::span<const std::string> names) {
  constexpr std::size_t kMost = 24;
  const std::string meant = did_you_mean(name, names);
  const auto shown = names.subspan(0, std::min(names.size(), kMost));
  std::string all =
      fmt::format("{}there are {}", meant.empty() ? "" : meant + " ", fmt::join(shown, ", "));
  if (!meant.empty()) all[meant.size() + 1] = 'T';
  if (shown.size() < names.size()) all += fmt::format(" and {} more", names.size() - shown.size());
  return all;
}

}  // namespace shoal
