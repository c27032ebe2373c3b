// Llama with a class or numbers for a text: transformers' LlamaForSequenceClassification.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shoal/nn/layers/task_head.h"
#include "shoal/nn/models/llama/trunk.h"
#include "shoal/nn/models/sequence_classifier.h"

namespace shoal::nn {

// Its units: embeddings, each block, final norm and head.
class LlamaClassifier final : public SequenceClassifier {
 public:
  // Named and ready for materialize().
  explicit LlamaClassifier(const LlamaConfig& config);
  std::string_view kind() const override { return "LlamaClassifier"; }
  const LlamaConfig& config() const { return trunk.config(); }
  std::string describe() const override;
  std::int64_t vocabulary() const override { return config().vocab_size; }
  std::int64_t positions() const override { return config().max_position_embeddings; }
  std::int64_t labels() const override { return config().num_labels; }
  bool regression() const override { return config().regression(); }
  std::optional<std::int64_t> padding() const override { return config().pad_token_id; }
  LoadReport load(const std::string& directory, const AssignParameter& assign) override;
  std::vector<std::string> save_config(const std::string& directory, DType dtype) const override;
  nlohmann::json configuration() const override;

  int units() const override { return trunk.units(); }
  std::string unit_name(int unit) const override { return trunk.unit_name(unit); }
  std::vector<Module*> unit_modules(int unit) const override;
  std::int64_t channels() const override { return config().hidden_size; }
  ResidualStream forward_unit(Context& context, int unit, ResidualStream stream,
                              const ChainInput& input) override;
  LossOutput forward_head(Context& context, ResidualStream stream,
                          const ChainInput& input) override;
  Tensor head_logits(Context& context, ResidualStream stream, const ChainInput& input) override;

  LlamaTrunk trunk;
  Slot<TaskHead> head;
};

}  // namespace shoal::nn
