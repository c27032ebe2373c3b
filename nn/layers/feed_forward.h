// The MLP of encoder-decoders.
#pragma once

#include <optional>

#include "shoal/nn/layers/layers.h"

namespace shoal::nn {

struct FeedForwardConfig {
  std::int64_t channels = 0, inner = 0;
  kernels::Activation activation = kernels::Activation::relu;
  float dropout = 0, std = 0.02f, output_std = 0.02f;
  bool bias = true;
  std::string in = "fc1", gate{}, out = "fc2";  // names of the children; without a name: no gate
  bool fused = false;  // `in` makes both: its outputs are those of `in`, then those of `gate`

  LinearConfig in_config() const {
    if (fused) return {channels, 2 * inner, bias, std};
    return {channels, inner, bias, std, activation};
  }
  LinearConfig gate_config() const { return {channels, inner, bias, std}; }
  LinearConfig out_config() const { return {inner, channels, bias, output_std}; }
};

// out(dropout(activation(in(x)))), or out(dropout(activation(in(x)) · gate(x))) (Shazeer, "GLU
// Variants Improve Transformer", 2020).
class FeedForward final : public MlpLike {
 public:
  explicit FeedForward(const FeedForwardConfig& config);
  std::string_view kind() const override { return "FeedForward"; }
  Value forward(Context& context, const Value& x) override;
  const FeedForwardConfig& config() const { return config_; }

  Slot<LinearLike> in;
  std::optional<Slot<LinearLike>> gate;
  Slot<LinearLike> out;
  Slot<Dropout> dropout;

 private:
  FeedForwardConfig config_;
};

}  // namespace shoal::nn
