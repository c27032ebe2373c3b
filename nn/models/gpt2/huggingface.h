// GPT-2 as a Hugging Face directory: config.json, generation_config.json, and model.safetensors or
// shards with an index. Compatible with transformers in both directions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/nn/models/gpt2/model.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// Like load_weights(). Accepts names with and without "transformer."; ignores mask buffers and a
// tied head's copy.
LoadReport load_gpt2_weights(const std::string& directory, Gpt2& model,
                             const AssignParameter& assign);

// Writes config.json, generation_config.json and the weights, as save_weights().
std::vector<std::string> save_gpt2(const std::string& directory, const Gpt2& model,
                                   const ParameterValue& value,
                                   std::int64_t max_shard_bytes = 5'000'000'000);

}  // namespace shoal::nn
