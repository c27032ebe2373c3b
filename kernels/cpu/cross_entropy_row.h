// Cross-entropy of one row of logits, vectorised.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

struct CrossEntropyRow {
  float loss = 0;
  bool correct = false;  // the target was the (first) largest logit
};

// logits [vocabulary] f32 are overwritten. Where `gradient` is not null it receives
// scale · (softmax(logits) - smoothed one-hot(target)) as gradient_dtype (f32, bf16 or f16), and
// may be the logits' own memory. 0 <= target < vocabulary.
CrossEntropyRow cross_entropy_row(float* logits, std::int64_t vocabulary, std::int32_t target,
                                  float label_smoothing, float scale, void* gradient,
                                  DType gradient_dtype);

// The same in two halves, where a row's classes lie on several ranks: what loss.h calls a rank's
// statistics. `logits` [columns] become exp(logit - largest). target: own column, or negative.
struct ShardRow {
  float largest = 0, sum = 0, target_logit = 0, total = 0;
};
ShardRow shard_row_statistics(float* logits, std::int64_t columns, std::int64_t target);

// gradient = exponentials · factor - offset, and `target_less` less at the target, rounded once.
// May be the exponentials' own memory where it is f32.
void shard_row_gradient(const float* exponentials, std::int64_t columns, std::int64_t target,
                        float factor, float offset, float target_less, void* gradient,
                        DType gradient_dtype);

}  // namespace shoal::kernels
