// Rows of tables and of activations, and rotary positions.
#pragma once

#include <cstdint>

#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// Rotary positions (Su et al., "RoFormer", 2021), paired as in Hugging Face's models: elements i
// and i + D/2 of each head are a point that turns by the angle of its position and i.
struct RotaryArgs {
  ConstView x;      // [B, T, H·D], f32, bf16 or f16
  ConstView table;  // [positions, D] f32: of each position D/2 cosines, then D/2 sines
  // Optional, [B, T] i32: each row's position, as packed sequences have them. A position outside
  // the table throws invalid_argument with its place and value.
  ConstView positions;
  std::int64_t first_position = 0;  // without them: of row 0 of every sample
  bool backward = false;            // turns the other way: dx of dy
  View out;                         // as x, and may be it
};

// Row i of a selection of n rows is row i * stride + numbers[i] of a matrix (of `offset`, where
// there are no numbers). A negative number: none. With strides of T these are places within samples
// of T rows each.
struct RowSelection {
  ConstView numbers;  // optional [n] i32
  std::int64_t stride = 0, offset = 0;
};

class EmbeddingKernels {
 public:
  virtual ~EmbeddingKernels() = default;

  // out[i] (+)= table[ids[i]]; ids [..] i32, table [V, C], out [.., C] of table's dtype.
  // An id outside [0, V) throws invalid_argument with its place and value.
  virtual void embedding(ConstView ids, ConstView table, View out, bool accumulate,
                         Stream stream) = 0;
  // dtable[ids[i]] += dout[i], in the order of i (deterministic); dtable [V, C] f32. Rows that no
  // id names are untouched: the caller has zeroed the table once.
  virtual void embedding_backward(ConstView ids, ConstView dout, View dtable, Stream stream) = 0;
  // dtable[i] += sum over b of dout[b, i]: positions, dout [B, T, C], dtable [>= T, C] f32.
  virtual void position_backward(ConstView dout, View dtable, Stream stream) = 0;

  virtual void rotary(const RotaryArgs& args, Stream stream) = 0;

  // out [n, C] = those rows of x [.., C], f32, bf16, f16 or i32; every byte of a row that is none
  // becomes `missing` (0xff: -1 in i32). A number beyond the stride (without one, beyond the rows
  // of x) throws invalid_argument with its place and value.
  virtual void select_rows(const RowSelection& rows, ConstView x, View out, std::uint8_t missing,
                           Stream stream) = 0;
  // dx [.., C]: those rows become dout's, all others 0. Nobody may be named twice.
  virtual void select_rows_backward(const RowSelection& rows, ConstView dout, View dx,
                                    Stream stream) = 0;

  // RoBERTa's positions, [B, T] i32 both: padding where an id is `padding`, the others of a sample
  // are padding + 1, padding + 2, ...
  virtual void count_positions(ConstView ids, std::int32_t padding, View out, Stream stream) = 0;
};

}  // namespace shoal::kernels
