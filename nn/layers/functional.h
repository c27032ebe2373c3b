// Differentiable operations.
//
//   const Value normed = rms_norm(context, x, *scale, 1e-6F);
//   const Value projected = linear(context, normed, *weight, nullptr, {.transposed = true});
//   const Value out = add(context, x, projected);
//
// Each runs its kernels through the Context's dispatcher, queued on context.stream, and records a
// Function if context.records(...). [.., C] means any leading dimensions. Activations and parameter
// values have one dtype (f32, bf16, f16). Weight gradients go to Parameter::gradient (f32).
// Parameters must outlive the tape. Mismatched shapes throw invalid_argument.
#pragma once

#include "shoal/nn/autograd/context.h"

namespace shoal::nn {

struct LinearOptions {
  bool transposed = false;  // weight is [out, in] (Linear), not [in, out] (GPT-2's Conv1D)
  kernels::Activation activation = kernels::Activation::none;
};
// activation(x·W + b); x [.., in] -> [.., out]. bias may be null. With an activation, its input is
// saved for backward.
Value linear(Context& context, const Value& x, Parameter& weight, Parameter* bias,
             const LinearOptions& options);

// LayerNorm (Ba et al., 2016) over the last dimension, as in torch; gamma, beta [C].
Value layer_norm(Context& context, const Value& x, Parameter& gamma, Parameter& beta,
                 float epsilon);

// Dropout at a path of the module tree. Disabled if the probability is 0 or the mode is evaluate.
// In an activation [B, T, C] (or [B, C]), element (b, t, c) has coordinate t·C + c of sample b,
// where t counts from context.activation.first_position (decision 10).
struct DropoutSite {
  float probability = 0;
  std::uint32_t path_hash = 0;
  std::int64_t column_offset = 0, columns = 0;  // a layer's slice of the channels; columns 0: x's
};
Value dropout(Context& context, const Value& x, const DropoutSite& site);  // x if disabled
Value dropout_add(Context& context, const Value& branch, const Value& residual,
                  const DropoutSite& site);                   // residual + dropout(branch)
Value add(Context& context, const Value& a, const Value& b);  // a and b have equal shapes

// RMSNorm (Zhang & Sennrich, 2019) of each C elements (a head) of x [.., n·C]; gamma [C] + offset.
Value rms_norm(Context& context, const Value& x, Parameter& gamma, float epsilon, float offset = 0);

// The end of a sub-layer and the next norm: sum = residual + dropout(branch), normed = norm(sum).
struct ResidualNorm {
  Value sum, normed;
};
// Without a branch: sum is x itself, and backward adds its two gradients in one pass.
ResidualNorm fork_layer_norm(Context& context, const Value& x, Parameter& gamma, Parameter& beta,
                             float epsilon);
ResidualNorm residual_layer_norm(Context& context, const Value& residual, const Value& branch,
                                 const DropoutSite& site, Parameter& gamma, Parameter& beta,
                                 float epsilon);
ResidualNorm fork_rms_norm(Context& context, const Value& x, Parameter& gamma, float epsilon,
                           float offset = 0);
ResidualNorm residual_rms_norm(Context& context, const Value& residual, const Value& branch,
                               const DropoutSite& site, Parameter& gamma, float epsilon,
                               float offset = 0);
// silu(gate) · up, both of the same shape.
Value swiglu(Context& context, const Value& gate, const Value& up);
// Rotates x [B, T, H·D] by its positions, as RotaryArgs (kernels/embedding.h). `table` is
// [positions, R] f32 on the kernels' device. `positions` is i32 [B, T] or undefined; host positions
// are checked first. In place if x has no other reference. head_dim is D; 0: R.
Value rotary(Context& context, Value x, const Tensor& table, std::int64_t first_position,
             const Tensor& positions = {}, std::int64_t head_dim = 0);

// table[ids]; ids i32 [..] -> [.., C]. Host ids are checked before anything is queued. Row
// `padding` (negative: none) gets no gradient, like torch.nn.Embedding's padding_idx.
Value embedding(Context& context, const Tensor& ids, Parameter& table, std::int64_t padding = -1);
// x + table[first_position + t] for x [B, T, C]; in place if x has no other reference.
Value add_positions(Context& context, Value x, Parameter& table, std::int64_t first_position);

// add_positions() with rows table[ids[b, t]], ids i32 [B, all T]. x may hold a slice of the
// positions, from context.activation.first_position. Host ids are checked first.
Value add_embedding(Context& context, Value x, Parameter& table, const Tensor& ids,
                    std::int64_t padding = -1);
// [B, T, C] -> [B, C]: one position of every sample.
Value position_of_all(Context& context, const Value& x, std::int64_t position);
// The same with position positions[b] of sample b; i32 [B]. Host positions are checked first.
Value positions_at(Context& context, const Value& x, const Tensor& positions);
// Selects rows of x [.., C] by index, i32 [n] -> [n, C]; each row at most once. A negative number
// gives zeros. Host numbers are checked first.
Value rows_at(Context& context, const Value& x, const Tensor& numbers);
// The same for targets i32 [..] -> [n]; a negative number gives -1 (no target).
Tensor targets_at(Context& context, const Tensor& targets, const Tensor& numbers);
Value transpose_samples(Context& context, const Value& x);  // [B, T, C] -> [B, C, T]

struct AttentionOptions {  // options of attention()
  std::int64_t heads = 1;
  std::int64_t key_heads = 0;  // with three tensors: heads of keys and values; 0: heads
  bool causal = true;
  std::int64_t window = 0;        // AttentionShape::window
  float scale = 0, soft_cap = 0;  // 0: 1 / sqrt(head size); AttentionShape::soft_cap
  DropoutSite dropout{};
  std::int64_t max_positions = 0;  // the model's maximum length, for dropout coordinates
  std::int64_t head_offset = 0;    // global index of local head 0
  // Optional u8 [B, S], 1 for visible keys; or i32 [B], the number of leading visible keys.
  Tensor key_mask{};
  Tensor sequences{};     // optional i32 [B, n] (AttentionShape::sequences); not with key_mask
  Value relative_bias{};  // optional [1, all heads, T + S - 1] (AttentionShape::relative_bias)
};
// qkv [B, T, 3·H·D] of a fused projection -> [B, T, H·D], without copies.
Value attention(Context& context, const Value& qkv, const AttentionOptions& options);
// With queries [B, T, H·D], and keys and values [B, S, key_heads·D]; if causal, S = T.
Value attention(Context& context, const Value& queries, const Value& keys, const Value& values,
                const AttentionOptions& options);

// Cross-entropy of the head cap(x·Wᵀ + bias); W [V, C], bias [V] or null; soft_cap: kernels/loss.h.
// `targets` may be in host memory or on the kernels' device.
//
// While recording, forward also computes dx and dW slice by slice, so that the full logits never
// exist. dW is added to weight.gradient immediately, which must be allocated; dropping the tape
// does not undo this. Backward therefore accepts only d(loss) = 1: scale with `loss_scale` instead.
// Gradients, but not the loss, are also multiplied by loss_scale and inverse_targets of `state`.
struct LossResult {
  Value loss;                // [1] f32: loss_scale × sum over valid targets
  Tensor loss_sum;           // [1] f32, unscaled; Context::read() gives the number
  std::int64_t targets = 0;  // valid targets; -1 (unknown) if they are on a device
};
struct LossOptions {  // options of the losses below
  float loss_scale = 1;
  const kernels::StepState* state = nullptr;  // on the kernels' device; null: no further scaling
  float label_smoothing = 0;
};
LossResult linear_cross_entropy(Context& context, const Value& hidden, Parameter& weight,
                                const Tensor& targets, const LossOptions& options,
                                Parameter* bias = nullptr, float soft_cap = 0);
// The same for logits [.., V] and targets i32 [..], for heads with few classes.
LossResult cross_entropy(Context& context, const Value& logits, const Tensor& targets,
                         const LossOptions& options);
// Sum of (x - target)². targets are f32, one per element of x, on the host or device; NaN: no
// target. Backward accepts only d(loss) = 1. label_smoothing is ignored.
LossResult squared_error(Context& context, const Value& x, const Tensor& targets,
                         const LossOptions& options);

// A custom loss: the sum of term(x[i], targets[i], slope). `term` also sets `slope` to its
// derivative with respect to x[i]. x and targets are f32 in host memory, with equally many
// elements; NaN: no target. Throws unavailable on a device. `name` must have static storage.
//   const auto absolute = [](float x, float target, float& slope) {
//     slope = x < target ? -1.0F : 1.0F;
//     return slope * (x - target);
//   };
//   pointwise_loss(context, "absolute", scores, input.targets, input.loss, absolute);
LossResult pointwise_loss(Context& context, std::string_view name, const Value& x,
                          const Tensor& targets, const LossOptions& options,
                          const std::function<float(float x, float target, float& slope)>& term);

}  // namespace shoal::nn
