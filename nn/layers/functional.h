// Differentiable operations. Each runs its kernels through the Context's dispatcher and, when
// context.records(...), records a Function. [.., C] means any leading dimensions. Activations and
// parameter values are of one dtype (f32, bf16, f16); weight gradients go into Parameter::gradient
// (f32), overwriting or adding as Parameter::accumulate() says. Shapes that do not fit throw.
#pragma once

#include "shoal/nn/autograd/context.h"

namespace shoal::nn {

struct LinearOptions {
  bool transposed = false;  // weight is [out, in] (Linear); else [in, out] (GPT-2's Conv1D)
  kernels::Activation activation = kernels::Activation::none;
};
// activation(x·W + b); x [.., in] -> [.., out]. bias may be null. With an activation, the value
// before it is kept for backward.
Value linear(Context& context, const Value& x, Parameter& weight, Parameter* bias,
             const LinearOptions& options);

Value layer_norm(Context& context, const Value& x, Parameter& gamma, Parameter& beta,
                 float epsilon);

// Dropout at a place in the module tree. Off when the probability is 0 or the mode is evaluate. In
// an activation [B, T, C] (or [B, C]) element (b, t, c) has coordinate t·C + c of sample b, where t
// counts from context.activation.first_position; a layer that holds a part of the channels says
// which (decision 10).
struct DropoutSite {
  float probability = 0;
  std::uint32_t path_hash = 0;
  std::int64_t column_offset = 0, columns = 0;  // 0 columns: as many as x has
};
Value dropout(Context& context, const Value& x, const DropoutSite& site);
// residual + dropout(branch)
Value dropout_add(Context& context, const Value& branch, const Value& residual,
                  const DropoutSite& site);
Value add(Context& context, const Value& a, const Value& b);

// RMSNorm (Zhang & Sennrich, 2019): x / sqrt(mean(x²) + epsilon) · gamma.
Value rms_norm(Context& context, const Value& x, Parameter& gamma, float epsilon);

// The end of one sub-layer and the norm of the next, in one pass: sum = residual + dropout(branch),
// normed = layer_norm(sum).
struct ResidualNorm {
  Value sum, normed;
};
// The same without a branch: sum is x itself, and both its gradients are added in one pass.
ResidualNorm fork_layer_norm(Context& context, const Value& x, Parameter& gamma, Parameter& beta,
                             float epsilon);
ResidualNorm residual_layer_norm(Context& context, const Value& residual, const Value& branch,
                                 const DropoutSite& site, Parameter& gamma, Parameter& beta,
                                 float epsilon);
ResidualNorm fork_rms_norm(Context& context, const Value& x, Parameter& gamma, float epsilon);
ResidualNorm residual_rms_norm(Context& context, const Value& residual, const Value& branch,
                               const DropoutSite& site, Parameter& gamma, float epsilon);

// silu(gate) · up, of one shape.
Value swiglu(Context& context, const Value& gate, const Value& up);

// x [B, T, H·D] turned by its positions, as RotaryArgs (kernels/embedding.h); `table` [positions,
// D] f32 where the kernels are; `positions` i32 [B, T] or undefined, checked as ids are. In place
// where nobody else holds x.
Value rotary(Context& context, Value x, const Tensor& table, std::int64_t first_position,
             const Tensor& positions = {});

// table[ids]; ids i32 [..] -> [.., C]. In host memory they are checked before anything is queued.
// Row `padding` (negative: none) gets no gradient here, as torch.nn.Embedding's padding_idx.
Value embedding(Context& context, const Tensor& ids, Parameter& table, std::int64_t padding = -1);
// For Functions: adds the rows of dy [.., C] to table.gradient, but for row `padding`.
void add_embedding_gradient(Context& context, Parameter& table, const Tensor& ids, const Tensor& dy,
                            std::int64_t padding);
// x + table[first_position + t] for x [B, T, C]; in place where nobody else holds x.
Value add_positions(Context& context, Value x, Parameter& table, std::int64_t first_position);

// x + table[ids[b, t]] for x [B, T, C], in place where nobody else holds x; ids i32 [B, all T]: x
// may be a part of the positions, from context.activation.first_position. ids are checked as above.
Value add_embedding(Context& context, Value x, Parameter& table, const Tensor& ids,
                    std::int64_t padding = -1);

// [B, T, C] -> [B, C] of one position of every sample.
Value position_of_all(Context& context, const Value& x, std::int64_t position);
// [B, T, C] -> [B, C] of position positions[b] of sample b; i32 [B]. In host memory they are
// checked before anything is queued.
Value positions_at(Context& context, const Value& x, const Tensor& positions);
// Rows of x [.., C] by their numbers, i32 [n], each at most once -> [n, C]. A negative one gives
// zeros. Checked as above.
Value rows_at(Context& context, const Value& x, const Tensor& numbers);
// The same of targets i32 [..] -> [n]; a negative number gives -1, which is no target.
Tensor targets_at(Context& context, const Tensor& targets, const Tensor& numbers);
// [B, T, C] -> [B, C, T]
Value transpose_samples(Context& context, const Value& x);

struct AttentionOptions {
  std::int64_t heads = 1;
  std::int64_t key_heads = 0;  // of three tensors: fewer keys and values (AttentionShape); 0: heads
  bool causal = true;
  float scale = 0;  // 0: 1 / sqrt(head size)
  DropoutSite dropout{};
  std::int64_t max_positions = 0;  // of the model, for dropout's coordinates
  std::int64_t head_offset = 0;    // local head 0 is this global head
  // Optional u8 [B, T], 1 where a key may be seen; or i32 [B]: how many, from the first on.
  Tensor key_mask{};
  Tensor sequences{};  // optional i32 [B, n], as AttentionShape::sequences; without a key_mask
};
// qkv [B, T, 3·H·D] as one projection gives it -> [B, T, H·D], without copies.
Value attention(Context& context, const Value& qkv, const AttentionOptions& options);
// The same from three tensors [B, T, H·D], keys and values of key_heads.
Value attention(Context& context, const Value& queries, const Value& keys, const Value& values,
                const AttentionOptions& options);
// For generation, without a tape: appends the keys and values to the cache, and queries attend to
// all it holds, each to those up to its own position.
struct KeyValueCache;
Value cached_attention(Context& context, const Value& qkv, KeyValueCache& cache,
                       const AttentionOptions& options);
Value cached_attention(Context& context, const Value& queries, const Value& keys,
                       const Value& values, KeyValueCache& cache, const AttentionOptions& options);

// Cross-entropy of the head x·Wᵀ + bias, W [V, C], bias [V] or null. While recording, dx and dW are
// computed in the same pass as the loss, slice by slice, so that logits never exist whole: dW is
// added to weight.gradient at once (gradient memory must exist; a tape dropped unwalked leaves it
// there), and the loss is linear in nothing else: backward accepts d(loss) = 1 only; scale with
// `loss_scale`; gradients, not the loss, are also multiplied with the loss_scale of `state`.
// Targets may lie in host memory or where the kernels are.
struct LossResult {
  Value loss;                // [1] f32: loss_scale × sum over valid targets
  Tensor loss_sum;           // [1] f32, unscaled; Context::read() gives the number
  std::int64_t targets = 0;  // valid ones; -1 (not known) where they lie on a device
};
struct LossOptions {
  float loss_scale = 1;
  const kernels::StepState* state =
      nullptr;  // of f16, where the kernels are; null: not scaled by it
  float label_smoothing = 0;
};
LossResult linear_cross_entropy(Context& context, const Value& hidden, Parameter& weight,
                                const Tensor& targets, const LossOptions& options,
                                Parameter* bias = nullptr);
// The same of logits [.., V] and targets i32 [..], for heads of few classes.
LossResult cross_entropy(Context& context, const Value& logits, const Tensor& targets,
                         const LossOptions& options);
// Sum of (x - target)², targets f32 of as many elements as x, wherever they lie; NaN: no target.
// Backward accepts 1 only, too; label_smoothing says nothing here.
LossResult squared_error(Context& context, const Value& x, const Tensor& targets,
                         const LossOptions& options);

}  // namespace shoal::nn
