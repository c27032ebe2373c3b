// Inputs whose results are known exactly in every dtype, whatever the order of the additions (the
// idea of nccl-tests' verifiable): whole numbers so small that no sum over the ranks is rounded.
// avg and prod stay exact where the number of ranks allows it; avg of others is within one
// rounding.
#pragma once

#include <cstdint>

#include "shoal/collectives/reduction.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives {

struct Verifiable {
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  std::int64_t seed = 0;  // of the operation: results that are left over do not pass for new ones

  // Elements [first, first + count) of what `rank` contributes, into data.
  void fill(int rank, std::int64_t first, std::int64_t count, void* data) const;
  // Elements of data that differ from the reduction of all ranks' elements [first, …).
  std::int64_t wrong_reduced(std::int64_t first, std::int64_t count, const void* data) const;
  // Elements of data that differ from what `rank` contributed.
  std::int64_t wrong_copied(int rank, std::int64_t first, std::int64_t count,
                            const void* data) const;
  // premultiplied_sum: that rank's factor, a power of two.
  double factor(int rank) const { return rank % 2 == 0 ? 1.0 : 2.0; }

 private:
  std::int64_t value(int rank, std::int64_t index) const;
  double reduced(std::int64_t index) const;
  std::int64_t highest() const;
  std::int64_t stride() const;
};

}  // namespace shoal::collectives
