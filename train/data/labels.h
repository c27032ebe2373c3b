// The names of classes, by id.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shoal {

class LabelSet {
 public:
  LabelSet() = default;  // no classes
  // In the order of their ids. An empty name, or one twice: invalid_argument.
  explicit LabelSet(std::vector<std::string> names);
  // The different texts in order, as run_glue and run_ner sort them: whole numbers by value, else
  // by code points.
  static LabelSet discover(std::vector<std::string> texts);

  bool empty() const { return names_.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::string& name(std::int64_t id) const;  // invalid_argument beyond the last

  // The id of a class by its name or, where no name is a number, by its number.
  std::optional<std::int32_t> find(std::string_view text) const;
  // corrupt_data with `place` ("train.tsv, line 7") and the classes there are.
  std::int32_t need(std::string_view text, std::string_view place) const;

  // Where a model has the same classes, perhaps in another order (compared in lower case, as
  // run_glue does): the model's id of each of ours.
  std::optional<std::vector<std::int32_t>> ids_in(const LabelSet& model) const;

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::int32_t> ids_;  // of the names
  bool numbers_are_ids_ = true;
};

}  // namespace shoal
