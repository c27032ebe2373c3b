#include "shoal/runtime/base/nearest.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/runtime/base/shortened.h"

namespace shoal {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find_first_of("_-"), name.size());
    if (end > 0) words.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return words;
}

// True if at most a third of the longer name's letters changed, or only one letter.
bool is_slip(std::int64_t distance, std::int64_t longer) {
  return distance == 0 || 3 * distance <= longer || (distance == 1 && longer > 1);
}

// Compares the names word by word, since a small change to the whole name can make another word:
// lora_rank is not local_rank. A word may be shortened.
bool have_near_words(std::string_view a, std::string_view b) {
  const auto first = words_of(a), second = words_of(b);
  if (first.size() != second.size()) return true;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].starts_with(second[i]) || second[i].starts_with(first[i])) continue;
    const std::int64_t distance = edit_distance(first[i], second[i]);
    const auto longer = std::max(std::ssize(first[i]), std::ssize(second[i]));
    if (!is_slip(distance, longer)) return false;
  }
  return true;
}

// True if `name` is `other` with parts left out: two words or more that `other` has in the same
// order (num_epochs for num_train_epochs), or at least the first four letters of `other`.
bool leaves_out(std::string_view name, std::string_view other) {
  if (name.size() >= 4 && other.starts_with(name)) return true;
  const auto words = words_of(name), all = words_of(other);
  std::size_t found = 0;
  for (const std::string_view word : all)
    if (found < words.size() && word == words[found]) ++found;
  return words.size() >= 2 && found == words.size();
}

}  // namespace

std::int64_t edit_distance(std::string_view a, std::string_view b) {
  // Far longer than any real name. Bounds the quadratic time that a hostile name could take.
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
    const std::string candidate = lower(other);
    const std::int64_t distance = std::max(at_least, edit_distance(wanted, candidate));
    if (nearest != nullptr && distance >= least) continue;
    if (!(is_slip(distance, longer) && have_near_words(wanted, candidate)) &&
        !leaves_out(wanted, candidate))
      continue;
    nearest = &other;
    least = distance;
  }
  return nearest == nullptr ? std::string() : *nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> names,
                         std::string_view otherwise) {
  const std::string nearest = nearest_name(name, names);
  return nearest.empty() ? std::string(otherwise)
                         : fmt::format("did you mean {}?", shortened(nearest));
}

std::string names_there_are(std::string_view name, std::span<const std::string> names) {
  constexpr std::size_t kMost = 24;
  const std::string meant = did_you_mean(name, names);
  std::vector<std::string> shown;
  for (const std::string& one : names.subspan(0, std::min(names.size(), kMost)))
    shown.push_back(shortened(one, 80));
  std::string all =
      fmt::format("{}there are {}", meant.empty() ? "" : meant + " ", fmt::join(shown, ", "));
  if (!meant.empty()) all[meant.size() + 1] = 'T';
  if (shown.size() < names.size()) all += fmt::format(" and {} more", names.size() - shown.size());
  return all;
}

}  // namespace shoal
