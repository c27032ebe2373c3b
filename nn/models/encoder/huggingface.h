// Encoders as Hugging Face directories: config.json and the weights. What transformers writes opens
// here, and the other way round.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// As load_weights(). Names with and without the family's prefix ("bert."), LayerNorm.gamma and
// .beta, and a tied decoder's bias under either name are accepted. What lies outside embeddings and
// layers may be missing: it is newly initialised, and reported, as transformers does.
LoadReport load_encoder_weights(const std::string& directory, Encoder& model,
                                const AssignParameter& assign);

// Writes config.json and the weights, as save_weights().
std::vector<std::string> save_encoder(const std::string& directory, const Encoder& model,
                                      const ParameterValue& value,
                                      std::int64_t max_shard_bytes = 5'000'000'000);
// The first file alone; `dtype` is that of the weights.
std::vector<std::string> save_encoder_config(const std::string& directory, const Encoder& model,
                                             DType dtype);

}  // namespace shoal::nn
