// The family of a model, by its config.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

// The config's model_type. If it has none, the family of the classes in `architectures`
// (LlamaForCausalLM: "llama"). Empty if Shoal knows none of the classes, or if they belong to
// several families.
std::string model_type_of(const nlohmann::json& config);

// The model types that Shoal implements.
const std::vector<std::string_view>& known_types();
// True if Shoal implements this model type.
bool is_known_type(std::string_view model_type);

// model_type_of(), but never empty: throws invalid_argument, naming `source`.
std::string model_type_of(const nlohmann::json& config, std::string_view source);

// The config with model_type_of() as its model_type.
nlohmann::json with_model_type(nlohmann::json config, std::string_view source);

}  // namespace shoal::nn
