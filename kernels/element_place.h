// Where elements of a part of a parameter are in the whole parameter, for updates that depend on
// it: stochastic rounding, and rules that keep numbers of rows and columns.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SHOAL_PLACES __host__ __device__ inline
#else
#define SHOAL_PLACES inline
#endif

namespace shoal::kernels {

struct ElementPlace {
  // Element i here is element first + i of this rank's part of the parameter, row-major.
  std::int64_t first = 0;
  // Position of this part in the whole parameter: rows of `row` elements, `row_step` apart, consist
  // of runs of `run` elements, `run_step` apart, starting at `base`. run 0: one contiguous range.
  std::int64_t base = 0, row = 0, row_step = 0, run = 0, run_step = 0;

  SHOAL_PLACES std::uint64_t element(std::int64_t i) const {
    const std::int64_t at = first + i;
    if (run == 0) return static_cast<std::uint64_t>(base + at);
    const std::int64_t within = at % row;
    return static_cast<std::uint64_t>(base + at / row * row_step + within / run * run_step +
                                      within % run);
  }
  // Number of elements from i on that are also contiguous in the whole parameter; at most `count`.
  SHOAL_PLACES std::int64_t consecutive(std::int64_t i, std::int64_t count) const {
    if (run == 0) return count;
    const std::int64_t left = run - (first + i) % row % run;
    return left < count ? left : count;
  }
};

// The same in the matrices [rows, columns] that a parameter [.., rows, columns] consists of. A row
// of the whole parameter has elements in one row of the part only.
struct MatrixPlace {
  ElementPlace place = {};
  std::int64_t count = 0;  // elements of the whole parameter
  // Of the whole parameter, and of this rank's part. All 0 if the parameter has fewer than two
  // dimensions.
  std::int64_t rows = 0, columns = 0, part_rows = 0, part_columns = 0;

  SHOAL_PLACES bool is_matrix() const { return columns > 0; }
  // Of all matrices together.
  SHOAL_PLACES std::int64_t all_rows() const { return is_matrix() ? count / columns : 0; }
  SHOAL_PLACES std::int64_t all_columns() const { return is_matrix() ? count / rows : 0; }
};

}  // namespace shoal::kernels
