// Layers of Llama-style decoders. Parameter names are Hugging Face's.
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

// Cosines and sines of rotary positions, created on first use and shared by a model's layers. Not a
// parameter, so not saved. Angles are f32 products, as in transformers.
class RotaryTable {
 public:
  // `frequencies`: rotation per position in radians, for each of the D/2 pairs.
  explicit RotaryTable(std::vector<float> frequencies) : frequencies_(std::move(frequencies)) {}
  std::int64_t head_dim() const { return 2 * static_cast<std::int64_t>(frequencies_.size()); }
  // [at least `positions`, D] f32, on the device of the context's kernels.
  const Tensor& of(const Context& context, std::int64_t positions);

 private:
  std::vector<float> frequencies_;
  // The table owns its memory, because a context and its memory may be temporary (for example when
  // units are measured).
  std::shared_ptr<MemoryResource> memory_;
  // The last one is the largest; captured steps may still read earlier ones.
  std::vector<Tensor> tables_;
};

struct GroupedSelfAttentionConfig {
  // heads · head_dim need not equal `channels`; `key_heads` must divide `heads`.
  std::int64_t channels = 0, heads = 1, key_heads = 1, head_dim = 0, max_positions = 0;
  float attention_dropout = 0, std = 0.02f;
  bool bias = false;
  std::shared_ptr<RotaryTable> rotary{};
};

// Causal attention with rotary positions. Groups of heads share keys and values (Ainslie et al.,
// "GQA", 2023). Four Linears.
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
