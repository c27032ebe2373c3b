// Fields of config.json as data: each names the member of a configuration that holds it.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {

template <class Config>
struct FieldOf {
  std::string_view name;
  std::variant<std::int64_t Config::*, double Config::*, bool Config::*, std::string Config::*,
               std::vector<std::string> Config::*, std::optional<std::int64_t> Config::*,
               std::optional<double> Config::*>
      member;
};

// `fields`, then `more`.
template <class Config>
std::vector<FieldOf<Config>> joined(std::vector<FieldOf<Config>> fields,
                                    const std::vector<FieldOf<Config>>& more) {
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

// Sets the members whose fields are there. An id may be a list, of which the first counts (Llama
// 3's eos_token_id).
template <class Config>
void read_fields(const ConfigReader& read, const std::vector<FieldOf<Config>>& fields,
                 Config& config) {
  for (const auto& [name, member] : fields)
    std::visit(
        [&](auto pointer) {
          auto& out = config.*pointer;
          using Value = std::remove_reference_t<decltype(out)>;
          if constexpr (std::same_as<Value, std::int64_t>)
            read.integer(name, out);
          else if constexpr (std::same_as<Value, double>)
            read.number(name, out);
          else if constexpr (std::same_as<Value, bool>)
            read.boolean(name, out);
          else if constexpr (std::same_as<Value, std::string>)
            read.text(name, out);
          else if constexpr (std::same_as<Value, std::vector<std::string>>)
            read.list(name, out);
          else if constexpr (std::same_as<Value, std::optional<double>>)
            read.optional_number(name, out);
          else if (name.ends_with("_token_id"))
            read.first_integer(name, out);
          else
            read.optional_integer(name, out);
        },
        member);
}

// Writes all but empty lists. An absent value is null.
template <class Config, class Json>
void write_fields(const std::vector<FieldOf<Config>>& fields, const Config& config, Json& json) {
  for (const auto& [name, member] : fields)
    std::visit(
        [&](auto pointer) {
          const auto& value = config.*pointer;
          if constexpr (requires { value.has_value(); })
            json[std::string(name)] = value ? Json(*value) : Json();
          else if constexpr (requires { value.front().front(); }) {
            if (!value.empty()) json[std::string(name)] = value;
          } else
            json[std::string(name)] = value;
        },
        member);
}

}  // namespace shoal::nn
