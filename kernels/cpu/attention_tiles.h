// What attention does to a tile of scores between two products, vectorised. A tile is `rows`
// queries by `columns` keys of one head; its scores are q·k, not yet scaled.
#pragma once

#include <cstdint>

#include "shoal/kernels/attention.h"
#include "shoal/kernels/cpu/tile_product.h"

namespace shoal::kernels {

// What dropout multiplies kept elements with.
inline float kept_scale(const AttentionShape& shape) { return 1.0f / (1.0f - shape.dropout); }

struct ScoreTile {
  const AttentionShape* shape = nullptr;
  std::int64_t batch = 0, head = 0;
  std::int64_t query = 0, key = 0;     // of the tile's first row and column
  std::int64_t rows = 0, columns = 0;  // columns count up to the last key of the tile
  // [columns] f32: 0, or -inf where the key mask hides a key; null: no mask.
  const float* key_bias = nullptr;
  float* scores = nullptr;  // [rows, stride] f32; whole panels may be written
  std::int64_t stride = 0;
  TileWord word = TileWord::f32;    // of the products that follow
  std::uint32_t* random = nullptr;  // room for random_room(columns) words, with dropout
  // Null, or where the first row's bits of the first column stand, rows kept_row_bytes() apart: a
  // bit a column, 1 where it is dropped. softmax_tile writes them and score_gradients reads them.
  std::uint8_t* kept = nullptr;
};

// Bytes of a query's bits in ScoreTile::kept; 0 where vectors are too short to write them so.
std::int64_t kept_row_bytes(std::int64_t keys);

// The online softmax (Milakov & Gimelshein, 2018): probabilities relative to the largest score so
// far, dropped ones 0 but the kept ones not yet scaled (finish_rows does that), into p
// [rows, stride], whose columns beyond the last key are 0 up to the next even one. p is f32 (may be
// the scores) or bf16, as `word` says. `largest` and `sum` [rows] are updated (before the first
// tile: -inf and 0), and the rows of out [rows, out_stride] so far are rescaled when their largest
// changes.
void softmax_tile(const ScoreTile& tile, void* p, float* largest, float* sum, float* out,
                  std::int64_t out_columns, std::int64_t out_stride);

// kept_scale · out row / sum as the shape's dtype, into a [rows, .., row_stride] tensor;
// log_sum_exp [rows], if any, from largest and sum. A row that saw no key gives 0 and -inf.
void finish_rows(const AttentionShape& shape, const float* out, std::int64_t out_stride,
                 std::int64_t rows, const float* largest, float* sum, void* to,
                 std::int64_t row_stride, float* log_sum_exp);

// delta[r] = dout[r]·out[r], rows of the shape's dtype.
void row_dots(const AttentionShape& shape, const void* dout, std::int64_t dout_stride,
              const void* out, std::int64_t out_stride, std::int64_t rows, float* delta);

// From scores and dp = dout·vᵀ (same stride): the probabilities p and the gradients of the scores
// ds, as the products want them. f32: p in the place of the scores, ds in the place of dp. bf16:
// p_pairs and ds_pairs [(rows + 1) / 2, stride] hold pairs of queries for one key, ds_rows
// [rows, stride] bf16 pairs of keys for one query; keys up to the next even one are written. What
// is one factor for a whole head is left to the sums (narrow_rows): p lacks kept_scale, ds the
// scale.
struct ScoreGradients {
  float* dp = nullptr;
  const float* log_sum_exp = nullptr;  // [rows]
  const float* delta = nullptr;        // [rows]
  std::uint32_t* p_pairs = nullptr;
  std::uint32_t* ds_pairs = nullptr;
  std::uint16_t* ds_rows = nullptr;
};
void score_gradients(const ScoreTile& tile, const ScoreGradients& gradients);

// Rows of a head as f32 (from bf16 or f16), and `factor` times f32 sums as rows of the shape's
// dtype.
void widen_rows(DType dtype, const void* from, std::int64_t stride, std::int64_t rows,
                std::int64_t columns, float* to);
void narrow_rows(DType dtype, const float* from, std::int64_t from_stride, std::int64_t rows,
                 std::int64_t columns, float factor, void* to, std::int64_t stride);

}  // namespace shoal::kernels
