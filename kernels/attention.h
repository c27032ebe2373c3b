// Scaled dot-product attention that never holds a [T, T] matrix for the whole batch (tiles of it,
// a thread at a time; Dao et al., "FlashAttention", 2022, and its recomputation in backward).
#pragma once

#include "shoal/kernels/random.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// Queries, keys and values by base pointer and strides in elements, so that they can be read from a
// fused [B, T, 3·H·D] projection without a copy: element (b, t, h, d) is at
// data + b·batch_stride + t·row_stride + h·D + d.
struct HeadsView {
  const void* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0;
};
struct MutableHeadsView {
  void* data = nullptr;
  std::int64_t batch_stride = 0, row_stride = 0;
};

struct AttentionShape {
  std::int64_t batch = 0, heads = 0, query_length = 0, key_length = 0, head_dim = 0;
  // Of k and v; 0: as many as heads. Head h reads key head h / (heads / key_heads) (Ainslie et al.,
  // "GQA", 2023), whose gradients are summed over the heads that read it.
  std::int64_t key_heads = 0;
  DType dtype = DType::f32;  // f32, bf16 or f16, of q, k, v, out and their gradients
  bool causal = false;       // query i sees keys j <= i + key_length - query_length
  float scale = 1;           // usually 1 / sqrt(head_dim)
  // [B, key_length] u8, 1 where a key may be seen; or [B] i32: how many keys of a batch row may be
  // seen, from the first on (padding on the right; taken into [0, key_length]), which is quicker.
  // Undefined: all. A query that sees no key gives 0; a key that nobody sees has gradients of 0.
  ConstView key_mask;
  // Packed sequences, [B, n] i32: where those of a batch row begin, ascending from 0. A sequence
  // ends where the next one begins, the last with the row (T); its tokens see each other alone, as
  // causality allows. Some may be empty (T: at the end), so that n is the same from call to call.
  // Rows are counted by themselves, so that a batch may be cut between any two. With it
  // query_length = key_length = T, and there is no key_mask.
  ConstView sequences;
  // Dropout of the probabilities; element (h, q, k) as random.h says.
  float dropout = 0;
  RandomSite site;
  std::int64_t max_positions = 0;  // P of random.h; >= key_length where dropout > 0
  std::int64_t head_offset = 0;    // local head 0 is this global head
  // Optional, kept_bytes() long, u8: forward notes here which probabilities it kept, so that
  // backward need not draw them again. A bit each, in the implementation's own order.
  View kept;
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;

  // Of AttentionShape::kept; 0: nothing to be gained by it.
  virtual std::int64_t kept_bytes(const AttentionShape&) const { return 0; }

  // out = dropout(softmax(scale·q·kᵀ + mask))·v; log_sum_exp [B, heads, query_length] f32 is kept
  // for backward (undefined in inference).
  virtual void attention(const AttentionShape& shape, HeadsView q, HeadsView k, HeadsView v,
                         MutableHeadsView out, View log_sum_exp, Stream stream) = 0;
  virtual void attention_backward(const AttentionShape& shape, HeadsView q, HeadsView k,
                                  HeadsView v, HeadsView out, ConstView log_sum_exp, HeadsView dout,
                                  MutableHeadsView dq, MutableHeadsView dk, MutableHeadsView dv,
                                  Stream stream) = 0;
};

}  // namespace shoal::kernels
