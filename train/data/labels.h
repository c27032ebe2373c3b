// Class names by id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shoal {

// Strips the characters that pandas ignores in a number: surrounding blanks and a leading "+".
std::string_view bare_number(std::string_view text);
// The canonical text of a whole number: "1" for 01, +1 and " 1". nullopt for other texts.
std::optional<std::string> whole_number_text(std::string_view text);

class LabelSet {
 public:
  LabelSet() = default;  // no classes
  // Names in the order of their ids. invalid_argument: an empty or duplicate name.
  explicit LabelSet(std::vector<std::string> names);
  // The distinct texts, sorted as in run_glue and run_ner: by value if all are whole numbers,
  // otherwise by code point.
  static LabelSet discover(std::vector<std::string> texts);
  static LabelSet discover_by_code_point(std::vector<std::string> texts);

  bool empty() const { return names_.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& name(std::int64_t id) const;  // invalid_argument if out of range

  // The id of a class given its name or, if no class name is a number, its decimal id.
  std::optional<std::int32_t> find(std::string_view text) const;
  // Like find(), but throws corrupt_data if there is no such class. The message has `place`
  // ("train.tsv, line 7") and the known classes.
  std::int32_t need(std::string_view text, std::string_view place) const;

  // The model's id of each class of this set; nullopt unless both have the same classes. Ignores
  // their order, and compares in lower case as run_glue does.
  std::optional<std::vector<std::int32_t>> ids_in(const LabelSet& model) const;

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int32_t> ids_;  // by name
  bool numbers_are_ids_ = true;
};

}  // namespace shoal
