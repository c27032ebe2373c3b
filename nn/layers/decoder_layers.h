// Layers of Llama-style decoders. Parameter names are Hugging Face's.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/nn/layers/layers.h"

namespace shoal::nn {

class RmsNorm final : public NormLike {
 public:
  // `offset` is added to the weight (Gemma: 1), which begins as 1 - offset.
  RmsNorm(std::int64_t channels, float epsilon, float offset = 0);
  std::string_view kind() const override { return "RmsNorm"; }
  Value forward(Context& context, const Value& x) override;
  ResidualNorm fork(Context& context, const Value& x) override;
  ResidualNorm forward(Context& context, const Value& residual, const Value& branch,
                       const DropoutSite& site) override;

 private:
  float epsilon_, offset_;
  std::shared_ptr<Parameter> weight_;
};

struct RotaryAngles {
  std::vector<float> frequencies;  // rotation per position in radians, for each pair
  float scale = 1;                 // of cosines and sines
  // Frequencies of calls with more than `short_positions` positions (Ding et al., "LongRoPE",
  // 2024). Empty: all calls have the same.
  std::vector<float> long_frequencies{};
  std::int64_t short_positions = 0;
};

// Cosines and sines of rotary positions, created on first use and shared by a model's layers. Not a
// parameter, so not saved. Angles are f32 products, as in transformers.
class RotaryTable {
 public:
  explicit RotaryTable(RotaryAngles angles) : angles_(std::move(angles)) {}
  // The number of each head's channels that turn.
  std::int64_t turning() const { return 2 * static_cast<std::int64_t>(angles_.frequencies.size()); }
  // [at least `positions`, turning()] f32, on the device of the context's kernels. `positions`:
  // number of positions of the call, earlier ones of a cache included. Throws invalid_argument if
  // the rows are `packed` and the frequencies depend on the number.
  const Tensor& of(const Context& context, std::int64_t positions, bool packed);

 private:
  RotaryAngles angles_;
  // The table owns its memory, because a context and its memory may be temporary (for example when
  // units are measured).
  std::shared_ptr<MemoryResource> memory_;
  // For short and for long calls. The last one is the largest; captured steps may still read
  // earlier ones.
  std::vector<Tensor> tables_[2];
};

struct GroupedSelfAttentionConfig {
  // heads · head_dim need not equal `channels`; `key_heads` must divide `heads`.
  std::int64_t channels = 0, heads = 1, key_heads = 1, head_dim = 0, max_positions = 0;
  float attention_dropout = 0, std = 0.02f, output_std = 0;  // output_std: of `output`; 0: std
  bool bias = false, output_bias = false;  // of the Linears of queries, keys, values; of `output`
  bool causal = true;
  // Names of the Linears. `fused` makes queries, keys and values, so key_heads is `heads`; empty:
  // q_proj, k_proj and v_proj. Its outputs are [heads, 3, head_dim] or, `by_part`, [3, heads,
  // head_dim].
  std::string fused{}, output = "o_proj";
  bool by_part = false;
  float norm_epsilon = 0;   // of norms of each head's queries and keys; 0: there are none
  float norm_offset = 0;    // RmsNorm's, of these norms
  float scale = 0;          // of scores; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;       // AttentionShape::soft_cap
  std::int64_t window = 0;  // AttentionShape::window
  std::shared_ptr<RotaryTable> rotary{};

  LinearConfig output_config() const {
    return {heads * head_dim, channels, output_bias, output_std > 0 ? output_std : std};
  }
};

// The children of an attention that make queries, keys and values.
struct HeadProjections {
  std::deque<Slot<LinearLike>> linears;  // of queries, keys and values; or one of all
  bool by_part = false;                  // of one of all: its outputs are not by head
  std::optional<Slot<NormLike>> query_norm, key_norm;

  // Makes a Linear whose outputs are `blocks` equal blocks, each divided by heads.
  using Make = std::function<std::unique_ptr<LinearLike>(const LinearConfig&, int blocks)>;
  HeadProjections(Module& attention, const GroupedSelfAttentionConfig& config, const Make& make);
  void add_norms(Module& attention, const GroupedSelfAttentionConfig& config);
};

// Attention with rotary positions. Groups of heads share keys and values (Ainslie et al.,
// "GQA", 2023). Two or four Linears, and RmsNorms of queries and keys (Dehghani et al., "Scaling
// Vision Transformers to 22 Billion Parameters", 2023).
class GroupedSelfAttention final : public AttentionLike {
 public:
  explicit GroupedSelfAttention(const GroupedSelfAttentionConfig& config);
  std::string_view kind() const override { return "GroupedSelfAttention"; }
  Value forward(Context& context, const Value& x, const AttentionInput& input) override;
  const GroupedSelfAttentionConfig& config() const { return config_; }

  HeadProjections projections;
  Slot<LinearLike> output;
  Slot<Dropout> dropout;

 private:
  GroupedSelfAttentionConfig config_;
};

// The options of GroupedSelfAttention's attention(), except for heads.
AttentionOptions attention_options(const GroupedSelfAttentionConfig& config, const Dropout& dropout,
                                   const AttentionInput& input);
// The heads [B, T, options.heads · D] of x [B, T, C]. Queries and keys are normalised if there are
// norms, then rotated by input.positions.
Value rotated_attention(Context& context, const HeadProjections& projections, RotaryTable& rotary,
                        const Value& x, const AttentionInput& input,
                        const AttentionOptions& options);

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
