// The ordinary layers. Parameter names are Hugging Face's.
#pragma once

#include "shoal/nn/layers/kinds.h"

namespace shoal::nn {

struct LinearConfig {
  std::int64_t in = 0, out = 0;
  bool bias = true;
  float std = 0.02f;  // of the initial weight
  kernels::Activation activation = kernels::Activation::none;
};

// weight is [out, in], as in torch.nn.Linear.
class Linear final : public LinearLike {
 public:
  explicit Linear(const LinearConfig& config);
  std::string_view kind() const override { return "Linear"; }
  Value forward(Context& context, const Value& x) override;
  const LinearConfig& config() const { return config_; }

 private:
  LinearConfig config_;
  std::shared_ptr<Parameter> weight_, bias_;
};

// weight is [in, out], as in transformers' Conv1D.
class Conv1D final : public LinearLike {
 public:
  explicit Conv1D(const LinearConfig& config);
  std::string_view kind() const override { return "Conv1D"; }
  Value forward(Context& context, const Value& x) override;
  const LinearConfig& config() const { return config_; }

 private:
  LinearConfig config_;
  std::shared_ptr<Parameter> weight_, bias_;
};

class LayerNorm final : public NormLike {
 public:
  LayerNorm(std::int64_t channels, float epsilon);
  std::string_view kind() const override { return "LayerNorm"; }
  Value forward(Context& context, const Value& x) override;
  ResidualNorm fork(Context& context, const Value& x) override;
  ResidualNorm forward(Context& context, const Value& residual, const Value& branch,
                       const DropoutSite& site) override;

 private:
  float epsilon_;
  std::shared_ptr<Parameter> weight_, bias_;
};

class Embedding final : public EmbeddingLike {
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
  // x [B, T, C] + rows [f, f + T), where f = context.activation.first_position + first_position. If
  // `positions` i32 [B, all T] is defined, it selects the rows (add_embedding()).
  Value forward(Context& context, Value x, std::int64_t first_position,
                const Tensor& positions = {});

 private:
  std::shared_ptr<Parameter> weight_;
};

// Adds table rows selected by ids: token types, positions that depend on ids. The table is small,
// so tensor parallelism does not split it.
class AddedEmbedding final : public Module {
 public:
  AddedEmbedding(std::int64_t rows, std::int64_t channels, float std, std::int64_t padding = -1);
  std::string_view kind() const override { return "AddedEmbedding"; }
  // x + table[ids]; see add_embedding().
  Value forward(Context& context, Value x, const Tensor& ids);

 private:
  std::shared_ptr<Parameter> weight_;
  std::int64_t padding_;
};

class Dropout final : public Module {
 public:
  explicit Dropout(float probability) : probability_(probability) {}
  std::string_view kind() const override { return "Dropout"; }
  Value forward(Context& context, const Value& x) { return dropout(context, x, site()); }
  // For operations that fuse this dropout.
  DropoutSite site() const { return {probability_, path_hash(), 0, 0}; }

 private:
  float probability_;
};

struct CausalSelfAttentionConfig {
  std::int64_t channels = 0, heads = 1, max_positions = 0;
  float scale = 0;  // 0: 1 / sqrt(head size)
  float attention_dropout = 0;
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

struct SelfAttentionConfig {
  std::int64_t channels = 0, heads = 1, max_positions = 0;
  float attention_dropout = 0;
  float std = 0.02f;
  // Names of the children.
  std::string query = "query", key = "key", value = "value", output = "output";
};

// BERT's attention: every position sees every key that the mask allows. Four Linears.
class SelfAttention final : public AttentionLike {
 public:
  explicit SelfAttention(const SelfAttentionConfig& config);
  std::string_view kind() const override { return "SelfAttention"; }
  Value forward(Context& context, const Value& x, const AttentionInput& input) override;
  const SelfAttentionConfig& config() const { return config_; }

  Slot<LinearLike> query, key, value, output;
  Slot<Dropout> dropout;

 private:
  SelfAttentionConfig config_;
};

struct MlpConfig {
  std::int64_t channels = 0, inner = 0;
  kernels::Activation activation = kernels::Activation::gelu_tanh;
  float std = 0.02f, projection_std = 0.02f;
  bool transposed = false;                       // Linear instead of Conv1D children
  std::string c_fc = "c_fc", c_proj = "c_proj";  // names of the children
};

// c_proj(activation(c_fc(x)))
class Mlp final : public Module {
 public:
  explicit Mlp(const MlpConfig& config);
  std::string_view kind() const override { return "Mlp"; }
  Value forward(Context& context, const Value& x);

  Slot<LinearLike> c_fc, c_proj;
};

struct LmHeadConfig {
  std::int64_t vocabulary = 0, channels = 0;  // for an own weight
  float std = 0.02f;
  std::shared_ptr<Parameter> tied{};  // the embedding's weight; null: create an own one
  bool bias = false;
  std::string weight = "weight";  // name of an own weight
};

// Language-model head: logits x·Wᵀ + bias. Shares its weight with the embedding or owns it.
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
