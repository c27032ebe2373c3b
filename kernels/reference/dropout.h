// Dropout of one element, from its global coordinates (random.h).
#pragma once

#include <algorithm>

#include "shoal/kernels/elementwise.h"

namespace shoal::kernels::reference {

// `x` is element `index` of a [rows, columns] tensor.
inline double dropped(const DropoutArgs& args, std::int64_t columns, std::int64_t index, double x) {
  if (args.probability == 0) return x;
  std::int64_t row = index / columns;
  const std::int64_t column = index % columns;
  if (args.rows.defined()) row = std::max(static_cast<const std::int32_t*>(args.rows.data)[row], 0);
  const std::int64_t global = args.columns ? args.columns : columns;
  const std::int64_t position = args.row_offset + row % args.rows_per_sample;
  const std::uint32_t sample =
      args.site.sample_first +
      static_cast<std::uint32_t>(row / args.rows_per_sample) * args.site.sample_stride;
  const std::uint32_t bits =
      random_bits(args.site, sample,
                  static_cast<std::uint64_t>(position * global + args.column_offset + column));
  return bits < dropout_threshold(args.probability) ? 0 : x / (1 - double{args.probability});
}

}  // namespace shoal::kernels::reference
