// RandomSite and DropoutArgs resolved for the vectorised Philox.
#pragma once

#include <algorithm>

#include "shoal/kernels/elementwise.h"

namespace shoal::kernels {

// A resolved RandomSite. `state` may change between calls, but not during one.
struct RandomKey {
  std::uint32_t key0 = 0, key1 = 0, site = 0, step = 0;

  explicit RandomKey(const RandomSite& from)
      : key0(static_cast<std::uint32_t>(from.seed)),
        key1(static_cast<std::uint32_t>(from.seed >> 32)),
        site(from.site),
        step(from.state ? from.state->step : 0) {}
};

// Resolved DropoutArgs of a [rows, columns] tensor.
struct DropoutPlan {
  RandomKey key;
  std::uint32_t threshold = 0;
  float scale = 1;
  std::uint32_t sample_first = 0, sample_stride = 1;
  std::int64_t rows_per_sample = 1, row_offset = 0, column_offset = 0, global_columns = 0;
  const std::int32_t* rows = nullptr;

  DropoutPlan(const DropoutArgs& args, std::int64_t columns)
      : key(args.site),
        threshold(dropout_threshold(args.probability)),
        scale(1.0f / (1.0f - args.probability)),
        sample_first(args.site.sample_first),
        sample_stride(args.site.sample_stride),
        rows_per_sample(args.rows_per_sample),
        row_offset(args.row_offset),
        column_offset(args.column_offset),
        global_columns(args.columns ? args.columns : columns),
        rows(static_cast<const std::int32_t*>(args.rows.data)) {}

  std::int64_t counted(std::int64_t row) const { return rows ? std::max(rows[row], 0) : row; }
  std::uint32_t sample(std::int64_t row) const {
    return sample_first +
           static_cast<std::uint32_t>(counted(row) / rows_per_sample) * sample_stride;
  }
  // Index of the row's first element inside its sample.
  std::uint64_t first_element(std::int64_t row) const {
    return static_cast<std::uint64_t>(
        (row_offset + counted(row) % rows_per_sample) * global_columns + column_offset);
  }
};

}  // namespace shoal::kernels
