// PEFT's adapter directories: adapter_config.json, and adapter_model.safetensors with the adapters'
// factors and the modules that were trained whole. Names are "base_model.model." and the name of
// the parameter.
#pragma once

#include <string>
#include <string_view>

#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

inline constexpr std::string_view kAdapterConfigFile = "adapter_config.json";
inline constexpr std::string_view kAdapterWeights = "adapter_model";  // .safetensors
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";

// config.json of the adapted model, with the task's labels. In an adapter's directory it has
// another name: beside a config.json, transformers would look for the whole model's weights.
inline constexpr std::string_view kAdaptedConfigFile = "adapted_config.json";

bool is_adapter(const std::string& directory);  // it has adapter_config.json
// The name of the model's config.json: kAdaptedConfigFile if it has adapters.
std::string config_name(const Module& model);

// Reads adapter_config.json. `base_directory` is base_model_name_or_path if that is a directory.
// Throws invalid_argument if it is no LoRA adapter, or names a field that changes the numbers and
// is not supported here.
LoraOptions read_adapter_config(const std::string& directory);

// As load_weights(), which calls it. First loads the base model: the one that the model's adapters
// name (LoraOptions::base_directory) or adapter_config.json does. A model without adapters gets the
// merged weights: W + scale·B·A. Throws not_found or invalid_argument if the adapter does not fit
// the model's.
LoadReport load_adapter(const std::string& directory, const Module& model, const WeightNames& names,
                        const AssignParameter& assign);
// The directory of the model that the adapters of `model` are for, or those in `directory` if
// `model` has none. Throws not_found if that is no directory.
std::string adapted_directory(const std::string& directory, const Module& model);
// Writes adapter_config.json for the adapters of `model`; nothing if it has none.
void save_adapter_config(const std::string& directory, const Module& model);
// W + scale·B·A, in f32, of an adapted layer's values.
Tensor merged_weight(const LinearLike& layer, const ConstView& weight, const ConstView& a,
                     const ConstView& b, MemoryResource& memory);
// As save_weights(), which calls it for a model with adapters: only what was trained.
std::vector<std::string> save_adapter(const std::string& directory, const Module& model,
                                      const ParameterValue& value);

}  // namespace shoal::nn
