// Splits a [rows, columns] tensor into packs of `width` elements that never span two rows, for
// kernels that need the column of an element.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/divisor.cuh"

namespace shoal::kernels {

struct RowPacks {
  std::int64_t columns, per_row, total;
  int width;
  bool small;  // `divisor` works for all pack numbers
  Divisor divisor;

  struct Place {
    std::int64_t row, column;
    std::int64_t count;  // elements from here to the row's end
  };

  RowPacks(std::int64_t rows, std::int64_t columns_in, int width_in)
      : columns(columns_in),
        per_row((columns_in + width_in - 1) / width_in),
        total(rows * per_row),
        width(width_in),
        small(total <= 0xffffffff) {
    if (small && per_row > 0) divisor = Divisor(static_cast<std::uint32_t>(per_row));
  }
  // If the first row is aligned for vectors, true means that every row is.
  bool whole() const { return columns % width == 0; }

  SHOAL_HOST_DEVICE Place at(std::int64_t pack) const {
    const std::int64_t row =
        small ? static_cast<std::int64_t>(divisor.quotient(static_cast<std::uint32_t>(pack)))
              : pack / per_row;
    const std::int64_t column = (pack - row * per_row) * width;
    return {row, column, columns - column};
  }
};

}  // namespace shoal::kernels
