// How attention by products is cut so that its matrices of scores fit into a workspace. Host code
// only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shoal/kernels/attention_checks.h"

namespace shoal::kernels {

// Elements from query to query: scores of 16 bits lie in 16-byte steps, as tensor cores want them.
inline std::int64_t score_leading(std::int64_t keys) {
  return std::max<std::int64_t>((keys + 7) / 8 * 8, 8);
}

// Of a piece at most. Whole batch rows as long as one fits, else whole heads of one batch row, else
// queries of one head.
struct ScorePiece {
  std::int64_t batch = 0, heads = 0, queries = 0;
  friend bool operator==(const ScorePiece&, const ScorePiece&) = default;
};

// The fewest queries of a piece, whatever the workspace: products of fewer rows only wait.
constexpr std::int64_t kLeastQueries = 64;

// `bytes`: of one score in all matrices that are there at once; `workspace`: bytes, 0 for as many
// as it takes.
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
