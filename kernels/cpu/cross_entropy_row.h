// Cross-entropy of one row of logits, vectorised.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

struct CrossEntropyRow {
  float loss = 0;
  bool correct = false;  // the target was the (first) largest logit
};

// Overwrites logits [vocabulary] f32. If `gradient` is not null, it receives
//   scale · (softmax(logits) - smoothed one-hot(target))
// as gradient_dtype (f32, bf16 or f16); it may alias the logits. Requires 0 <= target < vocabulary.
// soft_cap > 0: of logits soft_cap·tanh(logit / soft_cap), and the gradient of what was before.
CrossEntropyRow cross_entropy_row(float* logits, std::int64_t vocabulary, std::int32_t target,
                                  float label_smoothing, float soft_cap, float scale,
                                  void* gradient, DType gradient_dtype);

// Cross-entropy in two halves, for classes sharded over ranks. The first returns a rank's
// statistics (loss.h) and turns `logits` [columns] into exp(logit - largest) or, with a soft cap,
// into capped logits. target: this rank's column, or negative.
struct ShardRow {
  float largest = 0, sum = 0, target_logit = 0, total = 0;
};
ShardRow shard_row_statistics(float* logits, std::int64_t columns, std::int64_t target,
                              float soft_cap);

// gradient = exponentials · factor - offset, minus `target_less` at the target, rounded once. May
// alias the exponentials if it is f32. With a soft cap, these are exp(capped - largest), and the
// gradient is that of the logits before the cap.
struct ShardRowGradient {
  const float* kept = nullptr;  // [columns]: what shard_row_statistics() left
  std::int64_t columns = 0, target = -1;
  float factor = 1, offset = 0, target_less = 0;
  float largest = 0, soft_cap = 0;  // `largest` of the statistics
};
void shard_row_gradient(const ShardRowGradient& row, void* gradient, DType gradient_dtype);

}  // namespace shoal::kernels
