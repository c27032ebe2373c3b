// Embedding tables, row selection and rotary positions.
#pragma once

#include <cstdint>

#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// Rotary positions (Su et al., "RoFormer", 2021), paired as in Hugging Face's models. Of each
// head's D elements, the first R turn: elements i and i + R/2 form a point, rotated by an angle
// that depends on its position and i. The others are copied.
struct RotaryArgs {
  ConstView x;                // [B, T, H·D], f32, bf16 or f16
  ConstView table;            // [positions, R] f32: R/2 cosines, then R/2 sines for each position
  std::int64_t head_dim = 0;  // D; 0: R, whole heads turn
  // Optional, [B, T] i32: the position of each row, needed for packed sequences. A position outside
  // the table throws invalid_argument with its place and value.
  ConstView positions;
  std::int64_t first_position = 0;  // if no `positions`: position of each sample's row 0
  bool backward = false;            // rotates in the opposite direction: computes dx from dy
  View out;                         // like x; may alias x

  std::int64_t head_channels() const { return head_dim > 0 ? head_dim : table.shape[1]; }
};

// Selects n rows of a matrix: selection i is row i * stride + numbers[i], or i * stride + offset if
// `numbers` is undefined. A negative number selects no row. With stride T, the numbers are
// positions within samples of T rows each.
struct RowSelection {
  ConstView numbers;  // optional [n] i32
  std::int64_t stride = 0, offset = 0;
};

class EmbeddingKernels {
 public:
  virtual ~EmbeddingKernels() = default;

  // out[i] (+)= table[ids[i]]; ids [..] i32, table [V, C], out [.., C] of table's dtype.
  // Throws invalid_argument with the position and value of an id outside [0, V).
  virtual void embedding(ConstView ids, ConstView table, View out, bool accumulate,
                         Stream stream) = 0;
  // dtable[ids[i]] += dout[i], in the order of i (deterministic); dtable [V, C] f32. Rows that no
  // id names are left alone; the caller zeroes the table.
  virtual void embedding_backward(ConstView ids, ConstView dout, View dtable, Stream stream) = 0;
  // dtable[i] += sum over b of dout[b, i]: gradient of a position table; dout [B, T, C], dtable
  // [>= T, C] f32.
  virtual void position_backward(ConstView dout, View dtable, Stream stream) = 0;

  virtual void rotary(const RotaryArgs& args, Stream stream) = 0;

  // out [n, C] = the selected rows of x [.., C], f32, bf16, f16 or i32. If entry i selects no row,
  // every byte of out's row i becomes `missing` (0xff: -1 in i32). A number >= stride (with stride
  // 0: >= the rows of x) throws invalid_argument with its place and value.
  virtual void select_rows(const RowSelection& rows, ConstView x, View out, std::uint8_t missing,
                           Stream stream) = 0;
  // dx [.., C]: the selected rows become dout's; all others become 0 if `clear`, else they stay. No
  // row may be selected twice.
  virtual void select_rows_backward(const RowSelection& rows, ConstView dout, View dx, bool clear,
                                    Stream stream) = 0;

  // RoBERTa's positions; ids and out are [B, T] i32. An id equal to `padding` gets position
  // `padding`; the other ids of a sample get padding + 1, padding + 2, ...
  virtual void count_positions(ConstView ids, std::int32_t padding, View out, Stream stream) = 0;
};

}  // namespace shoal::kernels
