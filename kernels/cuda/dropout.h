// DropoutArgs in the form kernels take.
#pragma once

#include "shoal/kernels/cuda/philox.cuh"
#include "shoal/kernels/elementwise.h"

namespace shoal::kernels {

// `columns`: number of columns of the tensor. args.site.state, if any, is a device pointer.
inline RowDropout make_row_dropout(const DropoutArgs& args, std::int64_t columns) {
  RowDropout rows;
  rows.site = args.site;
  rows.threshold = dropout_threshold(args.probability);
  rows.scale = 1.0f / (1.0f - args.probability);
  rows.rows_per_sample = args.rows_per_sample;
  rows.row_offset = args.row_offset;
  rows.column_offset = args.column_offset;
  rows.columns = args.columns ? args.columns : columns;
  rows.rows = static_cast<const std::int32_t*>(args.rows.data);
  if (args.rows_per_sample <= 0xffffffff)
    rows.divisor = Divisor(static_cast<std::uint32_t>(args.rows_per_sample));
  return rows;
}

}  // namespace shoal::kernels
