// Fields of a Hugging Face config.json, for the configurations of this room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

// Reads fields of one file; a null or absent field keeps its default. Another type throws
// invalid_argument with file, field and value.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string_view file) : json_(object), file_(file) {
    if (!object.is_object()) fail("is not a JSON object");
  }
  void integer(const char* key, std::int64_t& out) const {
    if (const nlohmann::json* value = find(key)) {
      if (!value->is_number_integer()) wrong(key, *value, "an integer");
      out = value->get<std::int64_t>();
    }
  }
  void optional_integer(const char* key, std::optional<std::int64_t>& out) const {
    if (!json_.contains(key)) return;
    out.reset();
    std::int64_t value = 0;
    if (find(key)) integer(key, value), out = value;
  }
  void number(const char* key, double& out) const {
    if (const nlohmann::json* value = find(key)) {
      if (!value->is_number()) wrong(key, *value, "a number");
      out = value->get<double>();
    }
  }
  void boolean(const char* key, bool& out) const {
    if (const nlohmann::json* value = find(key)) {
      if (!value->is_boolean()) wrong(key, *value, "true or false");
      out = value->get<bool>();
    }
  }
  void text(const char* key, std::string& out) const {
    if (const nlohmann::json* value = find(key)) {
      if (!value->is_string()) wrong(key, *value, "a string");
      out = value->get<std::string>();
    }
  }
  // Fields whose every value but these is something this model does not compute.
  void refuse_true(const char* key) const {
    bool value = false;
    boolean(key, value);
    if (value) fail(fmt::format("has {}: true, which is not supported", key));
  }
  void refuse_filled(const char* key) const {
    if (const nlohmann::json* value = find(key); value && !value->empty())
      fail(fmt::format("has {}, which is not supported", key));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw_error(ErrorCode::invalid_argument, "{} {}", file_, what);
  }

 private:
  const nlohmann::json* find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void wrong(const char* key, const nlohmann::json& value, const char* want) const {
    fail(fmt::format("has {}: {}, where {} is expected", key, value.dump(), want));
  }
  const nlohmann::json& json_;
  std::string_view file_;
};

}  // namespace shoal::nn
