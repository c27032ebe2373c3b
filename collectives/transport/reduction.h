// How a collective combines the ranks' elements.
//
//   communicator.all_reduce(data, data, count, DType::f32, ReduceOp::avg);
//   communicator.all_reduce(data, data, count, DType::f32, Reduction::premultiplied_sum(0.5));
#pragma once

#include <cstdint>

namespace shoal::collectives {

// Integers have no avg (invalid_argument). min and max propagate NaN. 16-bit floats accumulate in
// f32.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg, premultiplied_sum };

// premultiplied_sum scales each rank's elements by that rank's own factor before the sum
// (ncclRedOpCreatePreMulSum); floating dtypes only.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  double factor = 1;
  constexpr Reduction(ReduceOp kind) : op(kind) {}  // NOLINT(google-explicit-constructor)
  static constexpr Reduction premultiplied_sum(double factor) {
    Reduction reduction(ReduceOp::premultiplied_sum);
    reduction.factor = factor;
    return reduction;
  }
};

}  // namespace shoal::collectives
