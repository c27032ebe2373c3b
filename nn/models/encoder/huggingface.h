// Encoders as Hugging Face directories: config.json and the weights, compatible with transformers
// in both directions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// Like load_weights(). Accepts names with and without the family's prefix ("bert."),
// LayerNorm.gamma and .beta, and both names of a tied decoder's bias. Parameters outside embeddings
// and layers may be missing; as in transformers, they are newly initialised and reported.
LoadReport load_encoder_weights(const std::string& directory, Encoder& model,
                                const AssignParameter& assign);

// Writes config.json and the weights, as save_weights().
std::vector<std::string> save_encoder(const std::string& directory, const Encoder& model,
                                      const ParameterValue& value,
                                      std::int64_t max_shard_bytes = 5'000'000'000);
// Writes only config.json. `dtype` is the dtype of the weights.
std::vector<std::string> save_encoder_config(const std::string& directory, const Encoder& model,
                                             DType dtype);

}  // namespace shoal::nn
