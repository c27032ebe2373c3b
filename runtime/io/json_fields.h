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
#include "shoal/runtime/base/shortened.h"

namespace shoal {

// The field; null if `object` is not an object, lacks the key, or holds null. Works on ordered and
// unordered JSON.
template <typename Json>
const Json* find_field(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

template <typename Json>
[[noreturn]] void wrong_field(const Json& value, std::string_view key, std::string_view file,
                              std::string_view want) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  throw_error(ErrorCode::invalid_argument, "{} has {}: {}, where {} is expected", file,
              shortened(key), shortened(text, 80), want);
}

// The integer that `value` holds. Returns nullopt for another type, including true and 1.0, and for
// an integer that does not fit.
template <std::integral Number, typename Json>
std::optional<Number> integer_in(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<Number>(value.template get<std::uint64_t>())
                        : std::in_range<Number>(value.template get<std::int64_t>());
  return fits ? std::optional(value.template get<Number>()) : std::nullopt;
}

// Converts `value`, the field `key` of `file`, to a Value: JSON, bool, a number, std::string, or a
// vector of these. Throws invalid_argument for another type, or for an integer that does not fit.
template <typename Value, typename Json>
Value field_as(const Json& value, std::string_view key, std::string_view file) {
  if constexpr (std::same_as<Value, Json>) {
    return value;
  } else if constexpr (std::same_as<Value, bool>) {
    if (!value.is_boolean()) wrong_field(value, key, file, "true or false");
    return value.template get<bool>();
  } else if constexpr (std::integral<Value>) {
    if (!value.is_number_integer()) wrong_field(value, key, file, "an integer");
    const bool fits = value.is_number_unsigned()
                          ? std::in_range<Value>(value.template get<std::uint64_t>())
                          : std::in_range<Value>(value.template get<std::int64_t>());
    if (!fits) wrong_field(value, key, file, "a number of another size");
    return value.template get<Value>();
  } else if constexpr (std::floating_point<Value>) {
    if (!value.is_number()) wrong_field(value, key, file, "a number");
    return value.template get<Value>();
  } else if constexpr (std::same_as<Value, std::string>) {
    if (!value.is_string()) wrong_field(value, key, file, "a string");
    return value.template get<std::string>();
  } else {
    if (!value.is_array()) wrong_field(value, key, file, "a list");
    Value all;
    all.reserve(value.size());
    for (const Json& item : value)
      all.push_back(field_as<typename Value::value_type>(item, key, file));
    return all;
  }
}

// The field as a Value, or `otherwise` if find_field() finds none.
template <typename Value, typename Json>
Value field_or(const Json& object, std::string_view key, Value otherwise, std::string_view file) {
  const Json* value = find_field(object, key);
  return value == nullptr ? std::move(otherwise) : field_as<Value>(*value, key, file);
}

// Throws corrupt_data if find_field() finds none.
template <typename Value, typename Json>
Value need_field(const Json& object, std::string_view key, std::string_view file) {
  const Json* value = find_field(object, key);
  if (value == nullptr) throw_error(ErrorCode::corrupt_data, "{} lacks {}", file, key);
  return field_as<Value>(*value, key, file);
}

class JsonFields {
 public:
  // Throws invalid_argument unless `object` is a JSON object. `file` names it in errors.
  JsonFields(const nlohmann::json& object, std::string_view file) : json_(object), file_(file) {
    if (!object.is_object()) fail("is not a JSON object");
  }

  const nlohmann::json* find(std::string_view key) const { return find_field(json_, key); }
  bool has(std::string_view key) const { return find(key) != nullptr; }

  void integer(std::string_view key, std::integral auto& out) const { read(key, out); }
  void optional_integer(std::string_view key, std::optional<std::int64_t>& out) const {
    if (!json_.contains(key)) return;
    out.reset();
    std::int64_t value = 0;
    if (has(key)) integer(key, value), out = value;
  }
  void number(std::string_view key, double& out) const { read(key, out); }
  void optional_number(std::string_view key, std::optional<double>& out) const {
    if (!json_.contains(key)) return;
    out.reset();
    double value = 0;
    if (has(key)) number(key, value), out = value;
  }
  void boolean(std::string_view key, bool& out) const { read(key, out); }
  void text(std::string_view key, std::string& out) const { read(key, out); }

  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::invalid_argument, "{} {}", file_, what);
  }
  [[noreturn]] void wrong(std::string_view key, const nlohmann::json& value,
                          std::string_view want) const {
    wrong_field(value, key, file_, want);
  }

 private:
  template <typename Value>
  void read(std::string_view key, Value& out) const {
    if (const nlohmann::json* value = find(key)) out = field_as<Value>(*value, key, file_);
  }

  const nlohmann::json& json_;
  std::string_view file_;
};

}  // namespace shoal
