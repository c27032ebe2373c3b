// The head of a language model. Not installed: custom heads derive from LossUnit (sequential.h).
#pragma once

#include "shoal/nn/layers/kinds.h"

namespace shoal::nn {

struct LmHeadConfig {
  std::int64_t vocabulary = 0, channels = 0;  // used if the head owns its weight
  float std = 0.02f;
  std::shared_ptr<Parameter> tied{};  // the embedding's weight; null: the head owns its weight
  bool bias = false;
  std::string weight = "weight";  // name of the weight if the head owns it
  std::string constant_bias{};    // name of a bias [1, V] that is not trained; empty: none
  float soft_cap = 0;             // logits become soft_cap · tanh(logit / soft_cap); 0: they stay
};

// Language-model head: logits x·Wᵀ + bias, perhaps capped. Shares its weight with the embedding or
// owns it.
class LmHead final : public HeadLoss {
 public:
  explicit LmHead(const LmHeadConfig& config);
  explicit LmHead(std::shared_ptr<Parameter> tied);
  LmHead(std::int64_t vocabulary, std::int64_t channels, float std);
  std::string_view kind() const override { return "LmHead"; }
  LossOutput forward(Context& context, const Value& hidden, const Tensor& targets,
                     const LossOptions& options) override;
  Tensor logits(Context& context, const Tensor& hidden) override;
  const std::shared_ptr<Parameter>& weight() const override { return weight_; }
  const LmHeadConfig& config() const { return config_; }

 private:
  LmHeadConfig config_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace shoal::nn
