// Cross-entropy of a linear head. Logits exist in slices of at most 1 GiB (CPU: 128 MiB).
#pragma once

#include <cstdint>

#include "shoal/kernels/step_state.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

struct LinearCrossEntropyArgs {
  ConstView x;         // [N, C] hidden states, f32/bf16/f16
  ConstView weight;    // [V, C], same dtype
  ConstView bias;      // optional [V]
  ConstView targets;   // [N] i32; negative: not a target (Hugging Face's -100)
  float soft_cap = 0;  // a logit x becomes soft_cap·tanh(x / soft_cap); 0: it stays
  float label_smoothing = 0;
  // Gradients are those of loss_scale * sum of losses. If `state` is set, they are also multiplied
  // by state->inverse_targets * state->loss_scale.
  float loss_scale = 1;
  const StepState* state = nullptr;  // in the kernels' device memory
  View loss_sum;                     // [1] f32: sum of the losses of valid targets; overwritten
  View token_loss;                   // optional [N] f32; 0 where there is no target
  View correct;                      // optional [1] i32: number of targets with the largest logit
  // Backward runs in the same pass; an undefined gradient is not computed.
  View dx;                          // [N, C]
  View dweight;                     // [V, C] f32, accumulated into when accumulate_dweight
  View dbias;                       // [V] f32
  bool accumulate_dweight = false;  // for dbias too
};

// Cross-entropy of logits that are already in memory.
struct CrossEntropyArgs {
  ConstView logits, targets;  // [N, V]; [N] i32
  float label_smoothing = 0;
  float loss_scale = 1;  // as above
  const StepState* state = nullptr;
  View loss_sum;
  View dlogits = {};  // optional [N, V]
};

struct SquaredErrorArgs {
  ConstView x, targets;
  float loss_scale = 1;  // as above
  const StepState* state = nullptr;
  View loss_sum;
  View dx = {};
};

// Cross-entropy with classes sharded over ranks (Shoeybi et al., "Megatron-LM", 2019). Each rank
// has the f32 logits [N, Vl] of classes [first_class, first_class + Vl). For each row it shares
// four numbers, f32 [N, 4]. The first two are its largest logit (-inf if it has no classes) and its
// sum of exp(logit - largest). The last two are the target's logit (0 if another rank owns the
// class) and the sum of its logits.
inline constexpr std::int64_t kShardStatistics = 4;
struct ShardCrossEntropyArgs {
  View exponentials;                          // [N, Vl] f32: what shard_statistics() left
  ConstView statistics;                       // [ranks, N, 4] f32, gathered from all ranks
  int rank = 0;                               // owner of the classes in `exponentials`
  ConstView targets;                          // [N] i32; negative: not a target
  std::int64_t first_class = 0, classes = 0;  // class of this rank's column 0; classes of all ranks
  float soft_cap = 0;                         // that of shard_statistics()
  float label_smoothing = 0;
  float loss_scale = 1;  // as above
  const StepState* state = nullptr;
  View token_loss;  // [N] f32, the same bits on every rank; 0 where there is no target
  View dlogits;     // optional [N, Vl] f32, bf16 or f16; in f32 it may alias `exponentials`
};

class LossKernels {
 public:
  virtual ~LossKernels() = default;

  // Loss and the requested gradients, one slice of rows at a time, so that only one slice of logits
  // is in memory. A target >= V throws invalid_argument with its row and value.
  virtual void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) = 0;

  // Same for small heads whose logits [N, V] are in memory. dlogits is optional, has the logits'
  // dtype or f32, and may alias the logits.
  virtual void cross_entropy(const CrossEntropyArgs& args, Stream stream) = 0;
  // loss_sum = sum of (x - target)² over all targets that are not NaN; targets are f32, as many as
  // x (f32, bf16 or f16) has elements. Optional dx of x's dtype: 2·loss_scale·(x - target), 0 where
  // the target is NaN.
  virtual void squared_error(const SquaredErrorArgs& args, Stream stream) = 0;

  // Statistics of this rank's classes; its logits become exp(logit - largest) in place. With a soft
  // cap (as above) the statistics are of capped logits, which replace the logits.
  virtual void shard_statistics(View logits, ConstView targets, std::int64_t first_class,
                                float soft_cap, View statistics, Stream stream) = 0;
  // Losses and gradients from all ranks' statistics, combined in rank order.
  virtual void shard_cross_entropy(const ShardCrossEntropyArgs& args, Stream stream) = 0;
};

}  // namespace shoal::kernels
