// Splits attention by products so that its score matrices fit a workspace. Host code only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shoal/kernels/attention_checks.h"

namespace shoal::kernels {

// Elements between queries of a score matrix. 16-bit scores are padded to 16 bytes for tensor
// cores.
inline std::int64_t score_leading(std::int64_t keys) {
  return std::max<std::int64_t>((keys + 7) / 8 * 8, 8);
}

// Largest piece: whole batch rows if one fits, else whole heads of one batch row, else queries of
// one head.
struct ScorePiece {
  std::int64_t batch = 0, heads = 0, queries = 0;
  friend bool operator==(const ScorePiece&, const ScorePiece&) = default;
};

// A piece has at least this many queries, whatever the workspace, since products with fewer rows
// are inefficient.
constexpr std::int64_t kLeastQueries = 64;

// `bytes`: bytes per score over all matrices that exist at once. `workspace`: bytes; 0: unlimited.
inline ScorePiece score_piece(const AttentionShape& s, std::int64_t bytes, std::int64_t workspace) {
  const ScorePiece whole{s.batch, s.heads, s.query_length};
  const std::int64_t query = score_leading(s.key_length) * bytes;
  const std::int64_t queries = query == 0 ? 0 : workspace / query;  // that fit
  if (workspace == 0 || s.query_length == 0) return whole;
  const std::int64_t heads = queries / s.query_length;
  if (heads >= s.heads)
    return {std::clamp<std::int64_t>(heads / s.heads, 1, s.batch), s.heads, s.query_length};
  if (heads > 0) return {1, heads, s.query_length};
  return {
      1, 1,
      std::min(std::max(queries / kLeastQueries * kLeastQueries, kLeastQueries), s.query_length)};
}

}  // namespace shoal::kernels
