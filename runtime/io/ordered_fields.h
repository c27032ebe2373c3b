// Builds a JSON object of many fields that keeps their order, in linear time.
//
//   OrderedFields labels;
//   for (...) labels[name] = id;
//   config["label2id"] = std::move(labels).json();
//
// nlohmann's ordered_json compares a key with all keys before it in each operator[], at() and
// contains(), so a loop over n names takes n^2 steps. tools/check_rules bans such loops.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal {

class OrderedFields {
 public:
  using Json = nlohmann::ordered_json;

  OrderedFields() = default;
  // Starts with the fields of `object`; null has none.
  explicit OrderedFields(Json object)
      : object_(object.is_null() ? Json::object() : std::move(object)) {
    SHOAL_ASSERT(object_.is_object());
    for (const auto& [key, value] : fields()) places_.emplace(key, places_.size());
  }

  // Returns the field; a new one holds null. The reference is valid until the next field is added.
  Json& operator[](const std::string& key) {
    auto& all = object_.get_ref<Json::object_t&>();
    const auto [place, is_new] = places_.try_emplace(key, all.size());
    if (is_new) all.emplace_back(key, nullptr);
    return std::next(all.begin(), static_cast<std::ptrdiff_t>(place->second))->second;
  }
  bool contains(const std::string& key) const { return places_.contains(key); }
  const Json::object_t& fields() const { return object_.get_ref<const Json::object_t&>(); }
  Json json() && { return std::move(object_); }

 private:
  Json object_ = Json::object();
  std::unordered_map<std::string, std::size_t> places_;
};

// The fields of an object, sorted by name. The object must outlive them.
inline std::vector<std::pair<std::string_view, const nlohmann::ordered_json*>> sorted_fields(
    const nlohmann::ordered_json& object) {
  std::vector<std::pair<std::string_view, const nlohmann::ordered_json*>> all;
  if (!object.is_object()) return all;
  for (const auto& [key, value] : object.get_ref<const nlohmann::ordered_json::object_t&>())
    all.emplace_back(key, &value);
  std::ranges::sort(all, {}, [](const auto& field) { return field.first; });
  return all;
}

}  // namespace shoal
