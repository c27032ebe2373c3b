// Argument checks shared by all AttentionKernels implementations, and the functions that
// define attention's mask.
#pragma once

#include <algorithm>
#include <cmath>

#include "shoal/kernels/attention.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {

// Relative positions of a call: the length of a head's AttentionShape::relative_bias.
inline std::int64_t relative_positions(const AttentionShape& s) {
  return std::max<std::int64_t>(s.query_length + s.key_length - 1, 0);
}
// The head's bias of a query and key 0; key j is at + j.
inline std::int64_t relative_row(const AttentionShape& s, std::int64_t head, std::int64_t query) {
  return head * relative_positions(s) + s.query_length - 1 - query;
}

inline void check_attention(const AttentionShape& s) {
  SHOAL_CHECK(
      s.batch >= 0 && s.heads >= 0 && s.query_length >= 0 && s.key_length >= 0 && s.head_dim >= 0,
      "attention: negative size: batch {}, heads {}, queries {}, keys {}, head_dim {}", s.batch,
      s.heads, s.query_length, s.key_length, s.head_dim);
  SHOAL_CHECK(s.key_heads >= 0 && (s.key_heads == 0 || s.heads % s.key_heads == 0),
              "attention: {} heads do not share {} key heads evenly", s.heads, s.key_heads);
  SHOAL_CHECK(s.dtype == DType::f32 || s.dtype == DType::bf16 || s.dtype == DType::f16,
              "attention of {} is not offered; use f32, bf16 or f16", to_string(s.dtype));
  SHOAL_CHECK(s.window >= 0,
              "attention: a window of {} keys; give a positive number, or 0 for none", s.window);
  SHOAL_CHECK(s.soft_cap >= 0 && std::isfinite(s.soft_cap),
              "attention: a soft cap of {}; give a positive number, or 0 for none", s.soft_cap);
  SHOAL_CHECK(s.soft_cap == 0 || !s.relative_bias.defined(),
              "attention: a soft cap ({}) and a relative bias together are not offered; use one",
              s.soft_cap);
  SHOAL_CHECK(s.dropout >= 0 && s.dropout < 1, "attention: dropout {} is not in [0, 1)", s.dropout);
  SHOAL_CHECK(
      s.dropout == 0 || (s.max_positions >= s.key_length && s.max_positions >= s.query_length),
      "attention: max_positions {} is below the length ({} queries, {} keys), so dropout "
      "has no coordinates",
      s.max_positions, s.query_length, s.key_length);
  const std::int64_t masks = s.key_mask.dtype == DType::i32 ? s.batch : s.batch * s.key_length;
  SHOAL_CHECK(
      !s.key_mask.defined() || ((s.key_mask.dtype == DType::u8 || s.key_mask.dtype == DType::i32) &&
                                s.key_mask.shape.count() == masks),
      "attention: key_mask is {} {}, neither u8 [{}, {}] nor i32 [{}]", to_string(s.key_mask.dtype),
      to_string(s.key_mask.shape), s.batch, s.key_length, s.batch);
  for (const ConstView& bias : {s.relative_bias, ConstView(s.relative_bias_gradient)})
    SHOAL_CHECK(
        !bias.defined() || (s.relative_bias.defined() && s.scale != 0 && bias.dtype == DType::f32 &&
                            bias.shape.count() == s.heads * relative_positions(s)),
        "attention: a relative bias or its gradient is {} {}, not f32 [{}, {}], or the "
        "scale is 0",
        to_string(bias.dtype), to_string(bias.shape), s.heads, relative_positions(s));
  if (!s.sequences.defined()) return;
  SHOAL_CHECK(s.sequences.dtype == DType::i32 && s.sequences.shape.rank() == 2 &&
                  s.sequences.shape[0] == s.batch && s.sequences.shape[1] > 0,
              "attention: sequences are {} {}, not i32 [{}, n]", to_string(s.sequences.dtype),
              to_string(s.sequences.shape), s.batch);
  SHOAL_CHECK(!s.key_mask.defined() && s.query_length == s.key_length,
              "attention: packed sequences have as many keys as queries ({}, {}) and no key_mask",
              s.key_length, s.query_length);
}

// Range [begin, end) of a token's sequence within its batch row.
struct TokenRange {
  std::int64_t begin = 0, end = 0;
};
// Requires AttentionShape::sequences in host memory.
inline TokenRange sequence_of(const AttentionShape& s, std::int64_t batch, std::int64_t position) {
  const std::int64_t count = s.sequences.shape[1];
  const auto* const first = static_cast<const std::int32_t*>(s.sequences.data) + batch * count;
  const auto* const next = std::upper_bound(first, first + count, position);
  const std::int64_t begin = next != first ? next[-1] : -1,
                     end = next != first + count ? *next : s.query_length;
  SHOAL_CHECK(begin >= 0 && end <= s.query_length,
              "attention: no sequence of batch row {}, of {} tokens, has token {}", batch,
              s.query_length, position);
  return {begin, end};
}

// AttentionShape::key_mask as one of its two forms; null if it has the other form or is undefined.
// The pointer may be to device memory.
inline const std::uint8_t* shown_keys_of(const AttentionShape& s) {
  return s.key_mask.dtype == DType::u8 ? static_cast<const std::uint8_t*>(s.key_mask.data)
                                       : nullptr;
}
inline const std::int32_t* key_lengths_of(const AttentionShape& s) {
  return s.key_mask.dtype == DType::i32 ? static_cast<const std::int32_t*>(s.key_mask.data)
                                        : nullptr;
}

// Number of query heads that read one key head.
inline std::int64_t heads_per_key_head(const AttentionShape& s) {
  return s.key_heads > 0 ? s.heads / s.key_heads : 1;
}

// The causal mask or, without one, the window leaves keys [0, visible_keys) to this query.
inline std::int64_t visible_keys(const AttentionShape& s, std::int64_t query) {
  if (!s.causal && s.window == 0) return s.key_length;
  // The window may be larger than every position.
  const std::int64_t ahead = s.causal ? 1 : std::min(s.window, s.query_length - query),
                     end = query + s.key_length - s.query_length + ahead;
  return end < 0 ? 0 : end < s.key_length ? end : s.key_length;
}

// The window hides keys [0, hidden_keys) from this query.
inline std::int64_t hidden_keys(const AttentionShape& s, std::int64_t query) {
  if (s.window == 0) return 0;
  return std::max<std::int64_t>(query + s.key_length - s.query_length + 1 - s.window, 0);
}

// Dropout coordinate of key 0 for this query (random.h); key k is at + k. `query` is relative to
// the first query of this call, whose position is key_length - query_length (key cache).
inline std::uint64_t dropout_row(const AttentionShape& s, std::int64_t head, std::int64_t query) {
  const std::int64_t position =
      query + (s.key_length > s.query_length ? s.key_length - s.query_length : 0);
  return static_cast<std::uint64_t>(((head + s.head_offset) * s.max_positions + position) *
                                    s.max_positions);
}

}  // namespace shoal::kernels
