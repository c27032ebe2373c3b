#include "shoal/train/run/model_config.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/config.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

bool is_known(const nlohmann::json& config) {
  if (is_decoder_config(config)) return true;
  const nlohmann::json& type = config["model_type"];
  return type.is_string() && nn::is_known_type(type.get_ref<const std::string&>());
}

}  // namespace

bool is_decoder_config(const nlohmann::json& config) {
  return config.is_object() &&
         std::ranges::count(nn::causal_lm_types(), nn::model_type_of(config)) > 0;
}

bool is_encoder_decoder_config(const nlohmann::json& config) {
  return config.is_object() && nn::is_encoder_decoder_type(nn::model_type_of(config));
}

nlohmann::json overridden_config(nlohmann::json config, const std::string& overrides,
                                 const std::string& source) {
  std::istringstream pairs(overrides);
  std::string pair;
  while (std::getline(pairs, pair, ',')) {
    const auto equals = pair.find('=');
    SHOAL_CHECK(equals != std::string::npos && equals > 0,
                "config_overrides: '{}' is not name=value", pair);
    const std::string name = pair.substr(0, equals);
    const auto field = config.find(name);
    if (field == config.end()) {
      std::vector<std::string> names;
      for (const auto& [known, unused] : config.items()) names.push_back(known);
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("config_overrides: {} has no '{}'", source, name),
                  names_there_are(name, names));
    }
    const std::string text = pair.substr(equals + 1);
    nlohmann::json value = json_if_valid(text).value_or(text);
    if (value == "True" || value == "False") value = value == "True";
    *field = std::move(value);
  }
  return config;
}

nlohmann::json completed_config(const nlohmann::json& config, const std::string& source) {
  if (is_decoder_config(config)) return nn::complete_causal_lm_config(config, source);
  if (is_encoder_decoder_config(config))
    return nn::completed_config(config,
                                nn::EncoderDecoderConfig::from_json(config, source).known_fields());
  const nlohmann::json known = nn::EncoderConfig::from_json(config, source).known_fields();
  nlohmann::json plain = config;
  // The plain fields have both bases, and the object would have priority over them.
  if (known.contains("global_rope_theta")) plain.erase("rope_parameters");
  return nn::completed_config(std::move(plain), known);
}

void check_model_type(const nlohmann::json& config, const std::string& source) {
  if (!config.is_object())
    throw_error(ErrorCode::corrupt_data, "{} is no object with a model's configuration", source);
  if (is_known(config)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is of a model of type {}", source,
                          shortened(config["model_type"].dump(), 80)),
              fmt::format("{} are known", fmt::join(nn::known_types(), ", ")));
}

nlohmann::json config_of_type(const std::string& type) {
  nlohmann::json config{{"model_type", type}};
  if (is_known(config)) return config;
  const std::vector<std::string> names(nn::known_types().begin(), nn::known_types().end());
  throw Error(ErrorCode::invalid_argument,
              fmt::format("model_type is \"{}\"; it takes one of {}", type, fmt::join(names, ", ")),
              did_you_mean(type, names));
}

}  // namespace shoal
