// Scaled dot-product attention. Score matrices [T, T] are computed tile by tile and never stored
// for the whole batch; backward recomputes them (Dao et al., "FlashAttention", 2022).
#pragma once

#include "shoal/kernels/random.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels {

// Queries, keys or values as a base pointer and strides in elements, so that they can be read from
// a fused [B, T, 3·H·D] projection without a copy. Element (b, t, h, d) is at data + b·batch_stride
// + t·row_stride + h·D + d.
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
  // Heads of k and v; 0: as many as `heads`. Query head h reads key head h / (heads / key_heads)
  // (Ainslie et al., "GQA", 2023). A key head's gradient is the sum over the query heads that read
  // it.
  std::int64_t key_heads = 0;
  DType dtype = DType::f32;  // f32, bf16 or f16; q, k, v, out and their gradients
  bool causal = false;       // query i sees keys j <= i + key_length - query_length
  // Sliding window: the query sees only keys less than `window` positions from its own, before it
  // and, without `causal`, after it; 0: all of them.
  std::int64_t window = 0;
  float scale = 1;  // usually 1 / sqrt(head_dim)
  // Soft cap: a scaled score x becomes soft_cap·tanh(x / soft_cap), before the masks (Gemma Team,
  // "Gemma 2", 2024). 0: none. Not together with relative_bias.
  float soft_cap = 0;
  // Either [B, key_length] u8, 1 where a key is visible; or [B] i32, the number of visible keys of
  // each batch row (right padding; clamped to [0, key_length]), which is faster. Undefined: all
  // keys are visible. A query that sees no key gives 0; an invisible key gets zero gradients.
  ConstView key_mask;
  // Bias of the scores by relative position (Raffel et al., "T5", 2020), f32 [heads,
  // query_length + key_length - 1]: query i and key j get entry j - i + query_length - 1 of their
  // head, added to scale·q·k. Undefined: none. Takes O(T) memory, where a bias of every pair would
  // take O(T²). `scale` must not be 0.
  ConstView relative_bias;
  // Backward writes the bias's gradient here, summed over the batch. Undefined: not wanted.
  View relative_bias_gradient;
  // Packed sequences, [B, n] i32: the position where each sequence of a batch row begins, ascending
  // from 0. A sequence ends where the next one begins, the last one at T. A token sees only its own
  // sequence (subject to `causal`). Sequences may be empty (at the end: begin = T), so n can stay
  // constant between calls. Positions are relative to their batch row, so a batch can be split
  // between rows. Requires query_length = key_length = T and no key_mask.
  ConstView sequences;
  // Dropout of the probabilities, by element (h, q, k) as random.h defines it.
  float dropout = 0;
  RandomSite site;
  std::int64_t max_positions = 0;  // P of random.h; >= key_length if dropout > 0
  std::int64_t head_offset = 0;    // global index of local head 0
  // Optional u8 buffer of kept_bytes(): forward records one bit per kept probability, in an order
  // private to the implementation, so that backward need not draw them again.
  View kept;
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;

  // Size of AttentionShape::kept; 0: the implementation does not use it.
  virtual std::int64_t kept_bytes(const AttentionShape&) const { return 0; }

  // out = dropout(softmax(cap(scale·q·kᵀ) + mask))·v. log_sum_exp [B, heads, query_length] f32 is
  // written for backward; undefined in inference.
  virtual void attention(const AttentionShape& shape, HeadsView q, HeadsView k, HeadsView v,
                         MutableHeadsView out, View log_sum_exp, Stream stream) = 0;
  virtual void attention_backward(const AttentionShape& shape, HeadsView q, HeadsView k,
                                  HeadsView v, HeadsView out, ConstView log_sum_exp, HeadsView dout,
                                  MutableHeadsView dq, MutableHeadsView dk, MutableHeadsView dv,
                                  Stream stream) = 0;
};

}  // namespace shoal::kernels
