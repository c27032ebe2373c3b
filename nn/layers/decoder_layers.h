// The layers of Llama-style decoders. Parameter names are Hugging Face's.
#pragma once

#include "shoal/nn/layers/layers.h"

namespace shoal::nn {

class RmsNorm final : public NormLike {
 public:
  RmsNorm(std::int64_t channels, float epsilon);
  std::string_view kind() const override { return "RmsNorm"; }
  Value forward(Context& context, const Value& x) override;
  ResidualNorm fork(Context& context, const Value& x) override;
  ResidualNorm forward(Context& context, const Value& residual, const Value& branch,
                       const DropoutSite& site) override;

 private:
  float epsilon_;
  std::shared_ptr<Parameter> weight_;
};

// Cosines and sines of rotary positions, made when they are first asked for and shared by a model's
// layers. No parameter: nothing is saved. Angles are f32 products, as transformers computes them.
class RotaryTable {
 public:
  // Of D/2 pairs: how far each turns a position, in radians.
  explicit RotaryTable(std::vector<float> frequencies) : frequencies_(std::move(frequencies)) {}
  std::int64_t head_dim() const { return 2 * static_cast<std::int64_t>(frequencies_.size()); }
  // [positions or more, D] f32, where the context's kernels are.
  const Tensor& of(const Context& context, std::int64_t positions);

 private:
  std::vector<float> frequencies_;
  // Memory of its own: a context may be one that is borrowed for a while (units whose cost is
  // measured), and its memory ends with it.
  std::shared_ptr<MemoryResource> memory_;
  // The last is the largest; captured steps read the earlier ones.
  std::vector<Tensor> tables_;
};

struct GroupedSelfAttentionConfig {
  // `heads` of head_dim channels each, which need not make up `channels`; `key_heads` divide them.
  std::int64_t channels = 0, heads = 1, key_heads = 1, head_dim = 0, max_positions = 0;
  float attention_dropout = 0, std = 0.02f;
  bool bias = false;
  std::shared_ptr<RotaryTable> rotary{};
};

// Causal attention with rotary positions, whose keys and values are shared by groups of heads
// (Ainslie et al., "GQA", 2023). Four Linears.
class GroupedSelfAttention final : public AttentionLike {
 public:
  explicit GroupedSelfAttention(const GroupedSelfAttentionConfig& config);
  std::string_view kind() const override { return "GroupedSelfAttention"; }
  Value forward(Context& context, const Value& x, const AttentionInput& input) override;
  const GroupedSelfAttentionConfig& config() const { return config_; }

  Slot<LinearLike> q_proj, k_proj, v_proj, o_proj;
  Slot<Dropout> dropout;

 private:
  GroupedSelfAttentionConfig config_;
};

struct GatedMlpConfig {
  std::int64_t channels = 0, inner = 0;
  float std = 0.02f;
  bool bias = false;
};

// down_proj(silu(gate_proj(x)) · up_proj(x))
class GatedMlp final : public MlpLike {
 public:
  explicit GatedMlp(const GatedMlpConfig& config);
  std::string_view kind() const override { return "GatedMlp"; }
  Value forward(Context& context, const Value& x) override;
  const GatedMlpConfig& config() const { return config_; }

  Slot<LinearLike> gate_proj, up_proj, down_proj;

 private:
  GatedMlpConfig config_;
};

}  // namespace shoal::nn
