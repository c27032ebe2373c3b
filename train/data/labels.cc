#include "shoal/train/data/labels.h"

#include <algorithm>
#include <charconv>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal {
namespace {

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [at, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || at != text.end()) return std::nullopt;
  return value;
}

void sort_distinct(std::vector<std::string>& texts) {
  std::sort(texts.begin(), texts.end());  // UTF-8 byte order equals code point order
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 'a' - 'A');
  return text;
}

}  // namespace

std::string_view bare_number(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";  // C's isspace()
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return text;
}

std::optional<std::string> whole_number_text(std::string_view text) {
  const auto value = whole_number(bare_number(text));
  return value ? std::optional(std::to_string(*value)) : std::nullopt;
}

LabelSet::LabelSet(std::vector<std::string> names) : names_(std::move(names)) {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    SHOAL_CHECK(!names_[i].empty(), "labels: class {} has an empty name", i);
    const auto [before, is_new] = ids_.emplace(names_[i], static_cast<std::int32_t>(i));
    SHOAL_CHECK(is_new, "labels: classes {} and {} are both called '{}'", before->second, i,
                shortened(names_[i]));
    numbers_are_ids_ = numbers_are_ids_ && !whole_number(names_[i]);
  }
}

LabelSet LabelSet::discover_by_code_point(std::vector<std::string> texts) {
  sort_distinct(texts);
  return LabelSet(std::move(texts));
}

LabelSet LabelSet::discover(std::vector<std::string> texts) {
  sort_distinct(texts);
  const auto is_number = [](const std::string& text) { return whole_number(text).has_value(); };
  if (std::all_of(texts.begin(), texts.end(), is_number))
    std::stable_sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) {
      return *whole_number(a) < *whole_number(b);
    });
  return LabelSet(std::move(texts));
}

const std::string& LabelSet::name(std::int64_t id) const {
  SHOAL_CHECK(id >= 0 && id < size(), "labels: class {} of {}", id, size());
  return names_[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> LabelSet::find(std::string_view text) const {
  if (const auto named = ids_.find(std::string(text)); named != ids_.end()) return named->second;
  if (!numbers_are_ids_) return std::nullopt;
  const auto id = whole_number(text);
  if (!id || *id < 0 || *id >= size()) return std::nullopt;
  return static_cast<std::int32_t>(*id);
}

std::int32_t LabelSet::need(std::string_view text, std::string_view place) const {
  if (const auto id = find(text)) return *id;
  constexpr std::size_t kShown = 12;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, names_.size()); ++i)
    names += fmt::format("{}{}", i == 0 ? "" : ", ", shortened(names_[i], 80));
  if (names_.size() > kShown) names += ", ...";
  throw_error(ErrorCode::corrupt_data, "{}: the label is '{}', none of the {} classes ({})", place,
              shortened(text), names_.size(), names);
}

std::optional<std::vector<std::int32_t>> LabelSet::ids_in(const LabelSet& model) const {
  if (model.size() != size()) return std::nullopt;
  std::unordered_map<std::string, std::int32_t> theirs;
  for (std::size_t id = 0; id < model.names_.size(); ++id)
    theirs.emplace(lower(model.names_[id]), static_cast<std::int32_t>(id));
  std::vector<std::int32_t> ids;
  for (const std::string& name : names_) {
    const auto found = theirs.find(lower(name));
    if (found == theirs.end()) return std::nullopt;
    ids.push_back(found->second);
  }
  return ids;
}

}  // namespace shoal
