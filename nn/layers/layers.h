// The ordinary layers. Parameter names are Hugging Face's.
//
//   Linear up({.in = 64, .out = 256});
//   up.name_tree("up");
//   up.materialize(context, DType::f32);       // draws up.weight [256, 64] and up.bias [256]
//   const Value out = up.forward(context, x);  // [B, T, 64] -> [B, T, 256]
//
// A layer owns its parameters. Streams, blocking and errors of forward(): see kinds.h.
#pragma once

#include "shoal/nn/layers/kinds.h"

namespace shoal::nn {

struct LinearConfig {  // configures a Linear; sizes in elements
  std::int64_t in = 0, out = 0;
  bool bias = true;
  float std = 0.02f;  // standard deviation of the initial weight
  kernels::Activation activation = kernels::Activation::none;
};

// weight is [out, in], as in torch.nn.Linear.
class Linear final : public LinearLike {
 public:
  explicit Linear(const LinearConfig& config);
  std::string_view kind() const override { return "Linear"; }
  Value forward(Context& context, const Value& x) override;
  Adaptable adaptable() const override { return {weight_.get()}; }
  const LinearConfig& config() const { return config_; }

 private:
  LinearConfig config_;
  std::shared_ptr<Parameter> weight_, bias_;
};

class LayerNorm final : public NormLike {  // over the last dimension, `channels` long
 public:
  LayerNorm(std::int64_t channels, float epsilon, bool bias = true);
  std::string_view kind() const override { return "LayerNorm"; }
  Value forward(Context& context, const Value& x) override;
  ResidualNorm fork(Context& context, const Value& x) override;
  ResidualNorm forward(Context& context, const Value& residual, const Value& branch,
                       const DropoutSite& site) override;

 private:
  Parameter& bias(const Context& context);

  float epsilon_;
  bool has_bias_;  // false: bias_ is zeros in memory_, and no parameter of the module
  std::shared_ptr<MemoryResource> memory_;
  std::shared_ptr<Parameter> weight_, bias_;
};

class Embedding final : public EmbeddingLike {  // weight [rows, channels]; ids [B, T]
 public:
  // `padding`: a row without gradient, as in embedding().
  Embedding(std::int64_t rows, std::int64_t channels, float std, std::int64_t padding = -1);
  std::string_view kind() const override { return "Embedding"; }
  Value forward(Context& context, const Tensor& ids) override;
  const std::shared_ptr<Parameter>& weight() const override { return weight_; }
  std::int64_t padding() const { return padding_; }

 private:
  std::shared_ptr<Parameter> weight_;
  std::int64_t padding_;
};

// Learned position embeddings, added to token embeddings.
class PositionEmbedding final : public Module {
 public:
  PositionEmbedding(std::int64_t positions, std::int64_t channels, float std);
  std::string_view kind() const override { return "PositionEmbedding"; }
  // x [B, T, C] + rows [f, f + T), f = context.activation.first_position + first_position; or the
  // rows that `positions` i32 [B, all T] selects (add_embedding()).
  Value forward(Context& context, Value x, std::int64_t first_position,
                const Tensor& positions = {});

 private:
  std::shared_ptr<Parameter> weight_;
};

class Dropout final : public Module {  // its mask depends on seed, path and position
 public:
  explicit Dropout(float probability) : probability_(probability) {}
  std::string_view kind() const override { return "Dropout"; }
  Value forward(Context& context, const Value& x) { return dropout(context, x, site()); }
  // For operations that fuse this dropout.
  DropoutSite site() const { return {probability_, path_hash(), 0, 0}; }

 private:
  float probability_;
};

struct CausalSelfAttentionConfig {  // configures the layer below
  std::int64_t channels = 0, heads = 1, max_positions = 0;
  float scale = 0, attention_dropout = 0;  // scale 0: 1 / sqrt(head size)
  float std = 0.02f, projection_std = 0.02f;
};

// GPT-2's attention: fused qkv projection c_attn, output projection c_proj.
class CausalSelfAttention final : public AttentionLike {
 public:
  explicit CausalSelfAttention(const CausalSelfAttentionConfig& config);
  std::string_view kind() const override { return "CausalSelfAttention"; }
  Value forward(Context& context, const Value& x, const AttentionInput& input) override;
  const CausalSelfAttentionConfig& config() const { return config_; }

  Slot<LinearLike> c_attn, c_proj;
  Slot<Dropout> attn_dropout;

 private:
  CausalSelfAttentionConfig config_;
};

struct MlpConfig {  // configures an Mlp
  std::int64_t channels = 0, inner = 0;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  float std = 0.02f, projection_std = 0.02f;
  bool transposed = false;                       // Linear instead of Conv1D children
  std::string c_fc = "c_fc", c_proj = "c_proj";  // names of the children
};

// c_proj(activation(c_fc(x)))
class Mlp final : public MlpLike {
 public:
  explicit Mlp(const MlpConfig& config);
  std::string_view kind() const override { return "Mlp"; }
  Value forward(Context& context, const Value& x) override;

  Slot<LinearLike> c_fc, c_proj;
};

}  // namespace shoal::nn
