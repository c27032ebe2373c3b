// Rows of a table.
#pragma once

#include "shoal/runtime/device/device.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

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
};

}  // namespace shoal::kernels
