// Fields of config.json as data: each names the member of a configuration that holds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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

}  // namespace shoal::nn
