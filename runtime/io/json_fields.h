// Fields of a JSON object that another program wrote. A null field counts as absent, since
// transformers writes null for "not set" in Hugging Face's files.
//
//   const JsonFields fields(config, "model/config.json");
//   fields.integer("n_layer", layers);            // keeps `layers` if absent or null
//   if (const auto* list = fields.find("labels")) ...
//
// A value of another type throws invalid_argument with the file, the field and the value. The
// object and the name must outlive the JsonFields. tools/check_rules bans nlohmann's json::value(),
// which throws on null.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal {

// The field; null if `object` is not an object, lacks the key, or holds null. Works on ordered and
// unordered JSON.
template <typename Json>
const Json* find_field(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The field as a Value, or `otherwise` if find_field() finds none. Throws nlohmann's type_error for
// a value of another type.
template <typename Value, typename Json>
Value field_or(const Json& object, std::string_view key, Value otherwise) {
  const Json* value = find_field(object, key);
  return value == nullptr ? std::move(otherwise) : value->template get<Value>();
}

// The integer that `value` is; nothing where it is something else (true and 1.0 too), or does not
// fit.
template <std::integral Number>
std::optional<Number> integer_in(const nlohmann::json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const bool fits = value.is_number_unsigned() ? std::in_range<Number>(value.get<std::uint64_t>())
                                               : std::in_range<Number>(value.get<std::int64_t>());
  return fits ? std::optional(value.get<Number>()) : std::nullopt;
}

class JsonFields {
 public:
  // Throws invalid_argument unless `object` is a JSON object. `file` names it in errors.
  JsonFields(const nlohmann::json& object, std::string_view file) : json_(object), file_(file) {
    if (!object.is_object()) fail("is not a JSON object");
  }

  const nlohmann::json* find(std::string_view key) const { return find_field(json_, key); }
  bool has(std::string_view key) const { return find(key) != nullptr; }

  void integer(std::string_view key, std::integral auto& out) const {
    using Number = std::remove_reference_t<decltype(out)>;
    const nlohmann::json* value = find(key);
    if (value == nullptr) return;
    if (!value->is_number_integer()) wrong(key, *value, "an integer");
    const auto read = integer_in<Number>(*value);
    if (!read) wrong(key, *value, "a number of another size");
    out = *read;
  }
  void optional_integer(std::string_view key, std::optional<std::int64_t>& out) const {
    if (!json_.contains(key)) return;
    out.reset();
    std::int64_t value = 0;
    if (has(key)) integer(key, value), out = value;
  }
  void number(std::string_view key, double& out) const {
    if (const nlohmann::json* value = find(key)) {
      if (!value->is_number()) wrong(key, *value, "a number");
      out = value->get<double>();
    }
  }
  void boolean(std::string_view key, bool& out) const {
    if (const nlohmann::json* value = find(key)) {
      if (!value->is_boolean()) wrong(key, *value, "true or false");
      out = value->get<bool>();
    }
  }
  void text(std::string_view key, std::string& out) const {
    if (const nlohmann::json* value = find(key)) {
      if (!value->is_string()) wrong(key, *value, "a string");
      out = value->get<std::string>();
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::invalid_argument, "{} {}", file_, what);
  }
  [[noreturn]] void wrong(std::string_view key, const nlohmann::json& value,
                          std::string_view want) const {
    std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (constexpr std::size_t kShown = 80; text.size() > kShown)
      text = text.substr(0, kShown) + "...";
    fail(fmt::format("has {}: {}, where {} is expected", key, text, want));
  }

 private:
  const nlohmann::json& json_;
  std::string_view file_;
};

}  // namespace shoal
