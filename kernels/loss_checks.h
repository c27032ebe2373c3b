// Argument checks shared by all LossKernels implementations.
#pragma once

#include <cmath>

#include "shoal/kernels/loss.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {

// Targets in device memory are checked by the kernel, which reports one outside the vocabulary.
inline void check_targets(ConstView targets, std::int64_t rows, std::int64_t vocabulary) {
  SHOAL_CHECK(targets.dtype == DType::i32 && targets.shape.count() == rows,
              "cross entropy: targets are {} {}, not i32 [{}]", to_string(targets.dtype),
              to_string(targets.shape), rows);
  if (!targets.device.is_cpu()) return;
  const std::int32_t* target = rows > 0 ? targets.as<std::int32_t>() : nullptr;
  for (std::int64_t row = 0; row < rows; ++row)
    SHOAL_CHECK(target[row] < vocabulary,
                "cross entropy: target {} of row {} is outside the vocabulary of {}", target[row],
                row, vocabulary);
}

inline void check_soft_cap(const char* operation, float soft_cap) {
  SHOAL_CHECK(soft_cap >= 0 && std::isfinite(soft_cap),
              "{}: a soft cap of {}; give a positive number, or 0 for none", operation, soft_cap);
}

inline void check_linear_cross_entropy(const LinearCrossEntropyArgs& args) {
  const auto is = [](const ConstView& view, DType dtype, std::int64_t count) {
    return !view.defined() || (view.dtype == dtype && view.shape.count() == count);
  };
  SHOAL_CHECK(
      args.x.shape.rank() >= 1 && args.weight.shape.rank() == 2 &&
          args.x.shape.columns() == args.weight.shape[1] && args.weight.shape[1] > 0 &&
          args.x.dtype == args.weight.dtype &&
          (args.x.dtype == DType::f32 || args.x.dtype == DType::bf16 || args.x.dtype == DType::f16),
      "linear_cross_entropy: x {} {} does not fit weight {} {} (at least one column)",
      to_string(args.x.dtype), to_string(args.x.shape), to_string(args.weight.dtype),
      to_string(args.weight.shape));
  const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape.columns(),
                     vocabulary = args.weight.shape[0];
  check_soft_cap("linear_cross_entropy", args.soft_cap);
  SHOAL_CHECK(args.label_smoothing >= 0 && args.label_smoothing <= 1,
              "linear_cross_entropy: label_smoothing {} is not in [0, 1]", args.label_smoothing);
  SHOAL_CHECK(
      !args.bias.defined() || (args.bias.shape.count() == vocabulary &&
                               (args.bias.dtype == DType::f32 || args.bias.dtype == args.x.dtype)),
      "linear_cross_entropy: bias {} {} for a vocabulary of {}", to_string(args.bias.dtype),
      to_string(args.bias.shape), vocabulary);
  SHOAL_CHECK(args.loss_sum.defined() && is(args.loss_sum, DType::f32, 1) &&
                  is(args.token_loss, DType::f32, rows) && is(args.correct, DType::i32, 1) &&
                  is(args.dx, args.x.dtype, rows * columns) &&
                  is(args.dweight, DType::f32, vocabulary * columns) &&
                  is(args.dbias, DType::f32, vocabulary),
              "linear_cross_entropy: an output has the wrong dtype or size for {} rows of {} and a "
              "vocabulary of {}",
              rows, columns, vocabulary);
  check_targets(args.targets, rows, vocabulary);
}

inline void check_cross_entropy(ConstView logits, ConstView targets, float label_smoothing,
                                View loss_sum, View dlogits) {
  SHOAL_CHECK(logits.shape.rank() >= 1 && is_floating(logits.dtype) && logits.dtype != DType::f64,
              "cross_entropy: logits are {} {}", to_string(logits.dtype), to_string(logits.shape));
  SHOAL_CHECK(label_smoothing >= 0 && label_smoothing <= 1,
              "cross_entropy: label_smoothing {} is not in [0, 1]", label_smoothing);
  SHOAL_CHECK(loss_sum.defined() && loss_sum.dtype == DType::f32 && loss_sum.shape.count() == 1,
              "cross_entropy: loss_sum must be one f32");
  SHOAL_CHECK(
      !dlogits.defined() || (dlogits.shape.count() == logits.shape.count() &&
                             (dlogits.dtype == logits.dtype || dlogits.dtype == DType::f32)),
      "cross_entropy: dlogits {} {} for logits {} {}", to_string(dlogits.dtype),
      to_string(dlogits.shape), to_string(logits.dtype), to_string(logits.shape));
  check_targets(targets, logits.shape.rows(), logits.shape.columns());
}

inline void check_squared_error(ConstView x, ConstView targets, View loss_sum, View dx) {
  SHOAL_CHECK((x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::f16) &&
                  targets.dtype == DType::f32 && targets.shape.count() == x.shape.count(),
              "squared_error: targets {} {} of {} {}", to_string(targets.dtype),
              to_string(targets.shape), to_string(x.dtype), to_string(x.shape));
  SHOAL_CHECK(loss_sum.defined() && loss_sum.dtype == DType::f32 && loss_sum.shape.count() == 1 &&
                  (!dx.defined() || (dx.dtype == x.dtype && dx.shape.count() == x.shape.count())),
              "squared_error: loss_sum must be one f32, and dx {} {} as x is", to_string(dx.dtype),
              to_string(dx.shape));
}

inline void check_shard_statistics(const View& logits, ConstView targets, std::int64_t first_class,
                                   float soft_cap, const View& statistics) {
  const std::int64_t rows = targets.shape.count();
  check_soft_cap("shard_statistics", soft_cap);
  SHOAL_CHECK(
      logits.dtype == DType::f32 && logits.shape.rank() == 2 && logits.shape[0] == rows &&
          targets.dtype == DType::i32 && first_class >= 0 && statistics.dtype == DType::f32 &&
          statistics.shape.count() == rows * kShardStatistics,
      "shard_statistics: logits {} {} of classes from {}, targets {} {}, statistics {} {}",
      to_string(logits.dtype), to_string(logits.shape), first_class, to_string(targets.dtype),
      to_string(targets.shape), to_string(statistics.dtype), to_string(statistics.shape));
}

inline void check_shard_cross_entropy(const ShardCrossEntropyArgs& args) {
  const std::int64_t rows = args.targets.shape.count();
  const Shape& all = args.statistics.shape;
  SHOAL_CHECK(args.statistics.dtype == DType::f32 && all.rank() == 3 && args.rank >= 0 &&
                  args.rank < all[0] && all[1] == rows && all[2] == kShardStatistics,
              "shard_cross_entropy: statistics {} {} for rank {} and {} rows",
              to_string(args.statistics.dtype), to_string(all), args.rank, rows);
  const Shape& own = args.exponentials.shape;
  SHOAL_CHECK(args.exponentials.dtype == DType::f32 && own.rank() == 2 && own[0] == rows &&
                  args.first_class >= 0 && args.first_class + own[1] <= args.classes &&
                  args.token_loss.dtype == DType::f32 && args.token_loss.shape.count() == rows,
              "shard_cross_entropy: {} {} of classes from {} of {}, losses {}",
              to_string(args.exponentials.dtype), to_string(own), args.first_class, args.classes,
              to_string(args.token_loss.shape));
  check_soft_cap("shard_cross_entropy", args.soft_cap);
  SHOAL_CHECK(args.label_smoothing >= 0 && args.label_smoothing <= 1,
              "shard_cross_entropy: label_smoothing {} is not in [0, 1]", args.label_smoothing);
  SHOAL_CHECK(!args.dlogits.defined() ||
                  (args.dlogits.shape == own &&
                   (args.dlogits.dtype == DType::f32 ||
                    ((args.dlogits.dtype == DType::bf16 || args.dlogits.dtype == DType::f16) &&
                     args.dlogits.data != args.exponentials.data))),
              "shard_cross_entropy: dlogits {} {} for {} (16-bit ones need memory of their own)",
              to_string(args.dlogits.dtype), to_string(args.dlogits.shape), to_string(own));
  check_targets(args.targets, rows, args.classes);
}

}  // namespace shoal::kernels
