// Inputs whose results are known exactly in every dtype and for any order of additions (the idea of
// nccl-tests' verifiable). They are integers so small that no sum over the ranks is rounded. prod
// and avg are exact if the number of ranks allows it; otherwise avg is within one rounding.
#pragma once

#include <cstdint>

#include "shoal/collectives/transport/operation.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives {

struct Verifiable {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  std::int64_t seed = 0;  // differs by operation, so that a stale result is not taken for a new one

  // Writes elements [first, first + count) of `rank`'s input to data.
  void fill(int rank, std::int64_t first, std::int64_t count, void* data) const;
  // Number of elements of data that differ from the reduction of all inputs; data begins at
  // `first`.
  std::int64_t wrong_reduced(std::int64_t first, std::int64_t count, const void* data) const;
  // Number of elements of data that differ from `rank`'s input.
  std::int64_t wrong_copied(int rank, std::int64_t first, std::int64_t count,
                            const void* data) const;
  // `rank`'s factor for premultiplied_sum, a power of two.
  double factor(int rank) const { return rank % 2 == 0 ? 1.0 : 2.0; }

 private:
  std::int64_t value(int rank, std::int64_t index) const;
  double reduced(std::int64_t index) const;
  std::int64_t highest() const;
  std::int64_t stride() const;
};

}  // namespace shoal::collectives
