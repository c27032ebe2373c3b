// Weights of a model as a Hugging Face directory: model.safetensors, or shards with an index.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/layers/module.h"

namespace shoal::nn {

// Receives one parameter's numbers, of the file's dtype (f32, bf16, f16, f64), of
// `parameter.whole_shape()`: all of the tensor, whatever part of it is here.
using AssignParameter = std::function<void(Parameter&, const ConstView&)>;
// Gives one parameter's numbers, whole_shape(), in host memory, until it is asked again.
using ParameterValue = std::function<ConstView(const Parameter&)>;

// How the files of a family of models call things. What is empty says no.
struct WeightNames {
  // What a parameter of this name may be called, the likeliest first.
  std::function<std::vector<std::string>(const std::string& parameter)> candidates;
  // Tensors that nobody misses a place for: buffers, a tied head's copy.
  std::function<bool(std::string_view tensor)> ignored;
  // Parameters that may be missing and then keep what materialize() drew: a new task's head.
  std::function<bool(const std::string& parameter)> may_be_new;
};

struct LoadReport {
  std::vector<std::string> unexpected;  // tensors in the files that the model has no place for
  std::vector<std::string> missing;     // parameters that are newly initialised
};
// "... newly initialised: classifier.weight, ...; not used: cls.predictions.bias": one line, empty
// where there is nothing to say.
std::string describe(const LoadReport& report);

// corrupt_data where the sizes in `config`, read from `source`, are of a model larger than all the
// weights in `directory`: it is not built, only to find most of it missing. Without weights:
// nothing.
void check_sizes(const nlohmann::json& config, const std::string& source,
                 const std::string& directory);

// Calls `assign` for every parameter of `model` that the files have. All missing tensors
// (not_found) and all of another shape or dtype (invalid_argument) are named in one error, before
// anything is assigned.
LoadReport load_weights(const std::string& directory, const Module& model, const WeightNames& names,
                        const AssignParameter& assign);
// Casts into parameter.value, which must exist.
AssignParameter assign_values(Context& context);

// Names that files have besides, each with the parameter whose values it has too.
using WeightCopies = std::vector<std::pair<std::string, std::string>>;

// Writes the weights under their parameters' names into `directory`, which exists. All values are
// of one dtype: f32, bf16 or f16. Reads nothing of the model but names and shapes, so it may run
// while training goes on. Returns the file names written.
std::vector<std::string> save_weights(const std::string& directory, const Module& model,
                                      const ParameterValue& value,
                                      std::int64_t max_shard_bytes = 5'000'000'000,
                                      const WeightCopies& copies = {});
// parameter.value as it is.
ParameterValue parameter_values();
// "float32": what config.json calls the dtype of saved weights; throws for one that is not saved.
std::string_view torch_name(DType dtype);

}  // namespace shoal::nn
