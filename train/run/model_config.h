// The configuration of a new model: a Hugging Face config.json from a model_type and overrides.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// True if the model_type is one of nn::causal_lm_types().
bool is_decoder_config(const nlohmann::json& config);
// True if it is one of an encoder-decoder (T5, BART, mBART).
bool is_encoder_decoder_config(const nlohmann::json& config);
// Throws corrupt_data or invalid_argument unless Shoal knows the model_type of `config`.
void check_model_type(const nlohmann::json& config, const std::string& source);
// A configuration with only a model_type. Throws invalid_argument with the known ones.
nlohmann::json config_of_type(const std::string& model_type);
// `config` with all fields that the model knows, so that overrides may name them.
nlohmann::json completed_config(const nlohmann::json& config, const std::string& source);
// Applies overrides such as "n_layer=6,n_embd=384", typed like the fields. Throws invalid_argument.
nlohmann::json overridden_config(nlohmann::json config, const std::string& overrides,
                                 const std::string& source);

}  // namespace shoal
