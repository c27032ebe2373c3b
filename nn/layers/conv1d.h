// GPT-2's Linear. Not installed, because other models use torch.nn.Linear's weight layout.
#pragma once

#include "shoal/nn/layers/layers.h"

namespace shoal::nn {

// weight is [in, out], as in transformers' Conv1D.
class Conv1D final : public LinearLike {
 public:
  explicit Conv1D(const LinearConfig& config);
  std::string_view kind() const override { return "Conv1D"; }
  Value forward(Context& context, const Value& x) override;
  Adaptable adaptable() const override { return {weight_.get(), false}; }
  const LinearConfig& config() const { return config_; }

 private:
  LinearConfig config_;
  std::shared_ptr<Parameter> weight_, bias_;
};

}  // namespace shoal::nn
