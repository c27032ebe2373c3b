// Vectorised steps of attention between the two products of a tile of scores. A tile is `rows`
// queries by `columns` keys of one head. Its scores are q·k, of which ScoreTile::scale is missing.
#pragma once

#include <cstdint>

#include "shoal/kernels/attention.h"
#include "shoal/kernels/cpu/tile_product.h"

namespace shoal::kernels {

// Factor of the elements that dropout keeps.
inline float kept_scale(const AttentionShape& shape) { return 1.0f / (1.0f - shape.dropout); }

struct ScoreTile {
  const AttentionShape* shape = nullptr;
  std::int64_t batch = 0, head = 0;
  std::int64_t query = 0, key = 0;     // of the tile's first row and column
  std::int64_t rows = 0, columns = 0;  // columns end at the tile's last key
  // [columns] f32: 0, or -inf if the key mask hides the key; null: no mask.
  const float* key_bias = nullptr;
  float* row_bias = nullptr;  // with a window: [2, stride] f32 of scratch
  float* scores = nullptr;    // [rows, stride] f32; writes may extend to whole panels
  float scale = 1;            // the shape's; 1 if there is a soft cap
  std::int64_t stride = 0;
  TileWord word = TileWord::f32;    // word type of the products that follow
  std::uint32_t* random = nullptr;  // with dropout: random_room(columns) words of scratch
  // Dropout's bits from the tile's first row and column on: one bit per column, 1 if dropped. Rows
  // are kept_row_bytes() apart. softmax_tile writes them and score_gradients reads them. Null: not
  // kept.
  std::uint8_t* kept = nullptr;
};

// Bytes of one query's bits in ScoreTile::kept; 0: the vectors are too short to write them.
std::int64_t kept_row_bytes(std::int64_t keys);

// Applies the shape's scale and soft cap to the scores that the rows see.
void cap_scores(const ScoreTile& tile);
// Adds AttentionShape::relative_bias to the scores, divided by the scale.
void add_relative_bias(const ScoreTile& tile);
// Adds a tile's ds (of score_gradients) to the head's sums [relative positions], f32. `ds` has the
// tile's stride and is f32 or bf16, by `word`.
void sum_relative_bias(const ScoreTile& tile, const void* ds, float* sums);

// Online softmax (Milakov & Gimelshein, 2018). Writes to p [rows, stride] the probabilities
// relative to the largest score so far. Dropped ones are 0; kept ones are scaled later, by
// finish_rows. Columns beyond the last key are 0 up to the next even one. p is f32 (may alias the
// scores) or bf16, by `word`.
// Updates `largest` and `sum` [rows] (initially -inf and 0). If a row's largest score changes, its
// partial sums in out [rows, out_stride] are rescaled.
void softmax_tile(const ScoreTile& tile, void* p, float* largest, float* sum, float* out,
                  std::int64_t out_columns, std::int64_t out_stride);

// Writes kept_scale · (row of out) / sum to each row of `to` [rows, .., row_stride], in the shape's
// dtype. Computes log_sum_exp [rows] from largest and sum, unless it is null. A row that saw no key
// gives 0 and -inf.
void finish_rows(const AttentionShape& shape, const float* out, std::int64_t out_stride,
                 std::int64_t rows, const float* largest, float* sum, void* to,
                 std::int64_t row_stride, float* log_sum_exp);

// delta[r] = dout[r]·out[r]; rows have the shape's dtype.
void row_dots(const AttentionShape& shape, const void* dout, std::int64_t dout_stride,
              const void* out, std::int64_t out_stride, std::int64_t rows, float* delta);

// Computes the probabilities p and the score gradients ds from scores and dp = dout·vᵀ (same
// stride), in the layout of the products.
// f32: p overwrites the scores and ds overwrites dp. bf16: p_pairs and ds_pairs [(rows + 1) / 2,
// stride] hold pairs of queries for one key, and ds_rows [rows, stride] bf16 holds pairs of keys
// for one query. Keys up to the next even one are written.
// Factors that are constant for a head are applied to the sums later (narrow_rows): p lacks
// kept_scale, and ds lacks the scale.
struct ScoreGradients {
  float* dp = nullptr;
  const float* log_sum_exp = nullptr;  // [rows]
  const float* delta = nullptr;        // [rows]
  std::uint32_t* p_pairs = nullptr;
  std::uint32_t* ds_pairs = nullptr;
  std::uint16_t* ds_rows = nullptr;
};
void score_gradients(const ScoreTile& tile, const ScoreGradients& gradients);

// widen_rows: copies a head's bf16 or f16 rows to f32. narrow_rows: writes `factor` times f32 sums
// as rows of `dtype`.
void widen_rows(DType dtype, const void* from, std::int64_t stride, std::int64_t rows,
                std::int64_t columns, float* to);
void narrow_rows(DType dtype, const float* from, std::int64_t from_stride, std::int64_t rows,
                 std::int64_t columns, float factor, void* to, std::int64_t stride);

}  // namespace shoal::kernels
