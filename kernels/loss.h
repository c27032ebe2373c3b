// Cross-entropy of a linear head, whose logits exist in slices, of 1 GiB (CPU: 128 MiB) at most.
#pragma once

#include <cstdint>

#include "shoal/kernels/random.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

struct LinearCrossEntropyArgs {
  ConstView x;        // [N, C] hidden states, f32/bf16/f16
  ConstView weight;   // [V, C], same dtype
  ConstView bias;     // optional [V]
  ConstView targets;  // [N] i32; negative: not a target (Hugging Face's -100)
  float label_smoothing = 0;
  // Gradients are those of loss_scale * sum of losses, times state->inverse_targets *
  // state->loss_scale unless it is null.
  float loss_scale = 1;
  const StepState* state = nullptr;  // where the kernels are
  View loss_sum;                     // [1] f32: sum of the losses of valid targets; overwritten
  View token_loss;                   // optional [N] f32; 0 where there is no target
  View correct;                      // optional [1] i32: targets that were the largest logit
  // Backward in the same pass; undefined: not wanted.
  View dx;                          // [N, C]
  View dweight;                     // [V, C] f32, accumulated into when accumulate_dweight
  View dbias;                       // [V] f32
  bool accumulate_dweight = false;  // dbias too
};

// The same from logits that exist.
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

// Cross-entropy whose classes lie on several ranks (Shoeybi et al., "Megatron-LM", 2019): each has
// the logits f32 [N, Vl] of classes [first_class, first_class + Vl), and tells the others four
// numbers a row, f32 [N, 4]: its largest logit (-inf where it has none), the sum of exp(logit -
// largest), the target's logit (0 where another has it) and the sum of its logits.
inline constexpr std::int64_t kShardStatistics = 4;
struct ShardCrossEntropyArgs {
  View exponentials;     // [N, Vl] f32, what shard_statistics made of the logits
  ConstView statistics;  // [ranks, N, 4] f32, everybody's
  int rank = 0;          // whose classes these are
  ConstView targets;     // [N] i32; negative: not a target
  std::int64_t first_class = 0, classes = 0;  // of this rank's column 0; of all ranks
  float label_smoothing = 0;
  float loss_scale = 1;  // as above
  const StepState* state = nullptr;
  View token_loss;  // [N] f32, the same bits on every rank; 0 where there is no target
  View dlogits;     // optional [N, Vl] f32, bf16 or f16; f32 may be `exponentials` themselves
};

class LossKernels {
 public:
  virtual ~LossKernels() = default;

  // Loss, and the gradients that are asked for, slice of rows by slice of rows: the peak is one
  // slice of logits. A target >= V throws invalid_argument with its row and value.
  virtual void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) = 0;

  // The same from logits that exist ([N, V], small heads): dlogits optional, of the logits' dtype
  // or f32; may be the logits themselves.
  virtual void cross_entropy(const CrossEntropyArgs& args, Stream stream) = 0;
  // loss_sum = sum of (x - target)² over the targets, f32 of as many elements as x (f32, bf16 or
  // f16), that are not NaN. dx, optional and of x's dtype: 2·loss_scale·(x - target), 0 where there
  // is no target.
  virtual void squared_error(const SquaredErrorArgs& args, Stream stream) = 0;

  // One rank's numbers; its logits become exp(logit - largest) in place.
  virtual void shard_statistics(View logits, ConstView targets, std::int64_t first_class,
                                View statistics, Stream stream) = 0;
  // Losses and gradients from everybody's, combined in the order of the ranks.
  virtual void shard_cross_entropy(const ShardCrossEntropyArgs& args, Stream stream) = 0;
};

}  // namespace shoal::kernels
