// Launchers of adafactor.cu.
#pragma once

#include "shoal/kernels/cuda/optimizer.cuh"

namespace shoal::kernels {

// Work of the kernels: of a block on elements; of a block on rows, one a warp; of a thread on the
// rows of one column.
inline constexpr std::int64_t kAdafactorChunk = 4096;
inline constexpr std::int64_t kFactoredRows = 8;
inline constexpr std::int64_t kColumnRows = 256, kColumnTile = 256;

// `place` is set with and without masters; if there are masters, only as an ElementPlace.
struct FactoredTensor : RoundedTensor {
  // Of MatrixPlace; `elements` is its count.
  std::int64_t elements, rows, columns, part_rows, part_columns;
  double* sums;  // AdafactorArgs::sums of this tensor

  SHOAL_PLACES std::int64_t all_rows() const { return columns > 0 ? elements / columns : 0; }
  SHOAL_PLACES std::int64_t all_columns() const { return columns > 0 ? elements / rows : 0; }
  // Rows of the part that this run touches, from row place.first / part_columns on.
  SHOAL_PLACES std::int64_t touched_rows() const {
    if (columns == 0 || count == 0) return 0;
    return (place.first + count + part_columns - 1) / part_columns - place.first / part_columns;
  }
  // Matrices of the part that it touches, from matrix place.first / (part_rows * part_columns) on.
  SHOAL_PLACES std::int64_t touched_matrices() const {
    if (columns == 0 || count == 0) return 0;
    const std::int64_t size = part_rows * part_columns;
    return (place.first + count + size - 1) / size - place.first / size;
  }
  SHOAL_PLACES std::int64_t row_blocks() const {
    return (part_rows + kColumnRows - 1) / kColumnRows;
  }
  SHOAL_PLACES std::int64_t column_tiles() const {
    return (part_columns + kColumnTile - 1) / kColumnTile;
  }
};

inline constexpr int kManyFactored = 160;
using FactoredTable = UpdateTable<FactoredTensor, kManyFactored>;
static_assert(sizeof(FactoredTable) <= 32764);

// sums of rows; chunks are groups of kFactoredRows rows.
cudaError_t launch_factored_rows(const FactoredTable& table, int multiprocessors,
                                 cudaStream_t stream);
// partial [chunks, kColumnTile] = sums of kColumnRows rows each; chunks are row blocks of column
// tiles of matrices, the row blocks innermost.
cudaError_t launch_factored_columns(const FactoredTable& table, double* partial,
                                    int multiprocessors, cudaStream_t stream);
// sums of columns = the sums over row blocks, in order.
cudaError_t launch_factored_columns_total(const FactoredTable& table, const double* partial,
                                          cudaStream_t stream);
// Advances the moments of rows and columns; computes the factors.
cudaError_t launch_factored_moments(const FactoredTable& table, double decay_rate,
                                    cudaStream_t stream);
// Advances the second moments of vectors; partial [chunks] = sums of u*u, by kAdafactorChunk.
cudaError_t launch_adafactor_squares(const FactoredTable& table, double decay_rate, double* partial,
                                     int multiprocessors, cudaStream_t stream);
cudaError_t launch_adafactor_squares_total(const FactoredTable& table, const double* partial,
                                           cudaStream_t stream);
// Updates; chunks as of launch_adafactor_squares().
cudaError_t launch_adafactor_apply(const FactoredTable& table, double clip_threshold,
                                   int multiprocessors, cudaStream_t stream);

}  // namespace shoal::kernels
