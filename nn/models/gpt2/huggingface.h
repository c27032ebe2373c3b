// GPT-2 as a Hugging Face directory: config.json, generation_config.json, model.safetensors or
// shards with an index. What transformers writes opens here, and the other way round.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shoal/nn/models/gpt2/model.h"

namespace shoal::nn {

// Receives one parameter's numbers, of the file's dtype (f32, bf16, f16, f64), of
// `parameter.whole_shape()`: all of the tensor, whatever part of it is here.
using AssignParameter = std::function<void(Parameter&, const ConstView&)>;
using ParameterValue = std::function<ConstView(const Parameter&)>;

// Tensors in the files that the model has no place for (mask buffers and a tied head's copy aside).
struct LoadReport {
  std::vector<std::string> unexpected;
};

// Calls `assign` for every parameter of the model. Names with and without "transformer." are
// accepted. All missing tensors (not_found) and all of another shape (invalid_argument) are named
// in one error, before anything is assigned.
LoadReport load_gpt2_weights(const std::string& directory, Gpt2& model,
                             const AssignParameter& assign);
// Casts into parameter.value, which must exist.
AssignParameter assign_values(Context& context);

// Writes config.json, generation_config.json and the weights into `directory`, which exists.
// `value` gives each parameter's numbers, `whole_shape()` (all of one dtype: f32, bf16 or f16), in
// host memory; it is asked for one after the other, and what it gives must stay until it is asked
// again. Reads nothing of the model but names and shapes, so it may run while training goes on.
// Returns the file names written.
std::vector<std::string> save_gpt2(const std::string& directory, const Gpt2& model,
                                   const ParameterValue& value,
                                   std::int64_t max_shard_bytes = 5'000'000'000);
// The first two files alone; `dtype` is that of the weights.
std::vector<std::string> save_gpt2_config(const std::string& directory, const Gpt2Config& config,
                                          DType dtype);
// parameter.value as it is.
ParameterValue parameter_values();

}  // namespace shoal::nn
