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
CrossEntropyRow cross_entropy_row(float* logits, std::int64_t vocabulary, std::int32_t target,
                                  float label_smoothing, float scale, void* gradient,
                                  DType gradient_dtype);

// Cross-entropy in two halves, for classes sharded over ranks. The first returns a rank's
// statistics (loss.h) and turns `logits` [columns] into exp(logit - largest). target: this rank's
// column, or negative.
struct ShardRow {
  float largest = 0, sum = 0, target_logit = 0, total = 0;
};
ShardRow shard_row_statistics(float* logits, std::int64_t columns, std::int64_t target);

// gradient = exponentials · factor - offset, minus `target_less` at the target, rounded once. May
// alias the exponentials if it is f32.
void shard_row_gradient(const float* exponentials, std::int64_t columns, std::int64_t target,
                        float factor, float offset, float target_less, void* gradient,
                        DType gradient_dtype);

}  // namespace shoal::kernels
