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

}  // namespace shoal::kernels
