// Reads and writes fields of a Hugging Face config.json, for the configurations in this folder.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "shoal/nn/models/config_fields.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::nn {

// Limits the memory and time that a tiny malicious file can demand.
inline constexpr std::int64_t kMostLayers = 10'000, kMostLabels = 32'768;
inline constexpr std::int64_t kMostWidth = 1 << 24, kMostHeadWidth = 1 << 16;
inline constexpr double kMostParameters = 1e13;  // keeps every product of sizes in 64 bits

// `parameters`: number of parameters without the head.
inline void check_parameters(double parameters) {
  SHOAL_CHECK(parameters <= kMostParameters, "a model of {:.2g} parameters is beyond reason",
              parameters);
}

// JsonFields, plus checks for fields that this implementation must refuse.
class ConfigReader : public JsonFields {
 public:
  using JsonFields::JsonFields;

  // A list of strings or of numbers.
  template <typename Value>
  void list(std::string_view key, std::vector<Value>& out) const {
    const nlohmann::json* all = find(key);
    if (all == nullptr) return;
    constexpr bool kTexts = std::same_as<Value, std::string>;
    const auto fits = [](const nlohmann::json& one) {
      return kTexts ? one.is_string() : one.is_number();
    };
    if (!all->is_array() || !std::ranges::all_of(*all, fits))
      wrong(key, *all, kTexts ? "a list of strings" : "a list of numbers");
    out = all->get<std::vector<Value>>();
  }
  // An id or a list of ids (transformers' eos_token_id); `out` gets the first.
  void first_integer(std::string_view key, std::optional<std::int64_t>& out) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr || !value->is_array()) return optional_integer(key, out);
    for (const nlohmann::json& id : *value)
      if (!id.is_number_integer() ||
          (id.is_number_unsigned() && !std::in_range<std::int64_t>(id.get<std::uint64_t>())))
        wrong(key, *value, "a token id or a list of them");
    out.reset();
    if (!value->empty()) out = value->front().get<std::int64_t>();
  }

  // Refuse all field values except false or empty: Shoal does not implement those features.
  void refuse_true(const char* key) const {
    bool value = false;
    boolean(key, value);
    if (value) fail(fmt::format("has {}: true, which is not supported", key));
  }
  void refuse_filled(const char* key) const {
    if (const nlohmann::json* value = find(key); value && !value->empty())
      fail(fmt::format("has {}, which is not supported", key));
  }
};

// Sets the members whose fields are there. eos_token_id may be a list, of which the first counts
// (Llama 3).
template <class Config>
void read_fields(const ConfigReader& read, const std::vector<FieldOf<Config>>& fields,
                 Config& config) {
  for (const auto& [name, member] : fields)
    std::visit(
        [&](auto pointer) {
          auto& out = config.*pointer;
          using Member = std::remove_reference_t<decltype(out)>;
          if constexpr (std::same_as<Member, std::int64_t>)
            read.integer(name, out);
          else if constexpr (std::same_as<Member, double>)
            read.number(name, out);
          else if constexpr (std::same_as<Member, bool>)
            read.boolean(name, out);
          else if constexpr (std::same_as<Member, std::string>)
            read.text(name, out);
          else if constexpr (std::same_as<Member, std::vector<std::string>>)
            read.list(name, out);
          else if constexpr (std::same_as<Member, std::optional<double>>)
            read.optional_number(name, out);
          else if (name.ends_with("eos_token_id"))
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
