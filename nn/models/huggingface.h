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

// Receives one parameter's values in the file's dtype (f32, bf16, f16, f64). The shape is
// `parameter.whole_shape()`, even if this rank holds only a part.
using AssignParameter = std::function<void(Parameter&, const ConstView&)>;
// Returns one parameter's values in host memory, with whole_shape(). Valid until the next call.
using ParameterValue = std::function<ConstView(const Parameter&)>;

// Tensor names in the files of a model family. An empty function means no.
struct WeightNames {
  // Possible names of a parameter, the most likely first.
  std::function<std::vector<std::string>(const std::string& parameter)> candidates;
  // Tensors that may be silently skipped: buffers, a tied head's copy.
  std::function<bool(std::string_view tensor)> ignored;
  // Parameters that may be missing and then keep their initial values, such as a new task's head.
  std::function<bool(const std::string& parameter)> may_be_new;
};

struct LoadReport {
  std::vector<std::string> unexpected;  // tensors in the files without a parameter
  std::vector<std::string> missing;     // newly initialised parameters
};
// One line: "newly initialised: classifier.weight, ...; not used: cls.predictions.bias". Empty if
// there is nothing to report.
std::string describe(const LoadReport& report);

// Throws invalid_argument if `config` (read from `source`) describes no model or unreasonable
// sizes. Throws corrupt_data if the weights in `directory`, if any, are too few for the described
// model. A huge model is then not built only to find most of its weights missing.
void check_sizes(const nlohmann::json& config, const std::string& source,
                 const std::string& directory);

// Calls `assign` for every parameter of `model` found in the files. Adapters keep their values,
// unless the directory is an adapter (adapter.h). Before anything is assigned,
// one error names all missing tensors (not_found) or all with a wrong shape or dtype
// (invalid_argument).
LoadReport load_weights(const std::string& directory, const Module& model, const WeightNames& names,
                        const AssignParameter& assign);
// Casts into parameter.value, which must exist.
AssignParameter assign_values(Context& context);

// The dtype of the values that save_weights() writes: of a model with adapters, that of these.
DType saved_dtype(const Module& model, const ParameterValue& value);
// Additional tensor names, each with the parameter whose values it repeats.
using WeightCopies = std::vector<std::pair<std::string, std::string>>;

// Writes the weights under their parameters' names to the existing `directory`; of a model with
// adapters only these (adapter.h). All values have one
// dtype: f32, bf16 or f16. Reads only names and shapes of the model, so it may run during training.
// Returns the names of the written files.
std::vector<std::string> save_weights(const std::string& directory, const Module& model,
                                      const ParameterValue& value,
                                      std::int64_t max_shard_bytes = 5'000'000'000,
                                      const WeightCopies& copies = {});
// "float32": the name of a dtype in config.json. Throws for dtypes that are not saved.
std::string_view torch_name(DType dtype);

}  // namespace shoal::nn
