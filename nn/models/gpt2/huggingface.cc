#include "shoal/nn/models/gpt2/huggingface.h"

namespace shoal::nn {

LoadReport load_gpt2_weights(const std::string& directory, Gpt2& model,
                             const AssignParameter& assign) {
  return model.load(directory, assign);
}

std::vector<std::string> save_gpt2(const std::string& directory, const Gpt2& model,
                                   const ParameterValue& value, std::int64_t max_shard_bytes) {
  const DType dtype = value(*model.parameters().front()).dtype;
  std::vector<std::string> names = model.save_config(directory, dtype);
  for (std::string& name : save_weights(directory, model, value, max_shard_bytes))
    names.push_back(std::move(name));
  return names;
}

}  // namespace shoal::nn
