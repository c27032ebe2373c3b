// FlashAttention on tiles of queries by keys that fit a core's L2 cache (Dao et al., 2022). A
// forward task is one (batch, head). It packs the head's keys and values once, then loops over
// blocks of queries and, for each of them, over blocks of keys up to the causal limit. A backward
// task is one (batch, key head) with all query heads that read it. Only this task writes their dq
// and the key head's dk and dv, so the order of every sum is the same for any number of threads.
#include "shoal/kernels/attention.h"

#include <algorithm>
#include <cstring>

#include "shoal/kernels/attention_checks.h"
#include "shoal/kernels/cpu/attention_tiles.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/scratch.h"
#include "shoal/kernels/cpu/tile_product.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {
namespace {

constexpr std::int64_t kQueries = 64;        // per tile
constexpr std::int64_t kForwardKeys = 512;   // scores take 128 KiB, probabilities the same or half
constexpr std::int64_t kBackwardKeys = 256;  // two tiles of scores, three of probabilities

std::int64_t whole_panels(std::int64_t columns) {
  constexpr std::int64_t width = TileProduct::kMaxPanelWidth;
  return (columns + width - 1) / width * width;
}

// Stride of a tile's rows, in elements. It is two cache lines of f32 larger than needed: rows a
// power of two apart would share a few sets of the L1 cache, and a product walks across rows.
std::int64_t tile_stride(std::int64_t keys, std::int64_t largest) {
  return std::min(whole_panels(keys), largest) + 32;
}

// Carves cache-line-aligned arrays out of a memory block. With a null base it only counts bytes.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}
  template <typename T>
  T* take(std::int64_t count) {
    char* at = base_ ? base_ + used_ : nullptr;
    used_ += (count * static_cast<std::int64_t>(sizeof(T)) + 127) / 64 * 64;
    return reinterpret_cast<T*>(at);
  }
  std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

// Rows of one head, in the caller's tensor or in an f32 copy.
struct Rows {
  const char* data = nullptr;
  std::int64_t stride = 0;   // elements
  std::int64_t element = 4;  // bytes
  Rows from(std::int64_t row) const { return {data + row * stride * element, stride, element}; }
  TileOperand operand() const { return {data, stride * element, 4}; }
};

// Buffers of one task.
struct Workspace {
  float *wide_q, *wide_k, *wide_v, *wide_dout;  // f32 copies, if the words are f32 and the inputs
                                                // are not
  std::uint32_t *keys_t, *values, *values_t, *keys, *queries, *douts;  // packed
  float *scores, *dp, *out, *dk, *dv, *key_bias, *row_bias;
  std::uint16_t *p, *ds_rows;
  std::uint32_t *p_pairs, *ds_pairs, *random;
  float *largest, *sum, *delta;

  Workspace(Carver& carve, const AttentionShape& s, const TileProduct& product, bool backward);
};

Workspace::Workspace(Carver& carve, const AttentionShape& s, const TileProduct& product,
                     bool backward) {
  const bool wide = product.word() == TileWord::f32 && s.dtype != DType::f32;
  const bool pairs = product.word() == TileWord::bf16_pair;
  const std::int64_t d = s.head_dim, width = whole_panels(d), keys_all = s.key_length,
                     columns = tile_stride(keys_all, backward ? kBackwardKeys : kForwardKeys),
                     tile = kQueries * columns;
  const auto floats = [&](bool wanted, std::int64_t count) {
    return wanted ? carve.take<float>(count) : nullptr;
  };
  const auto words = [&](bool wanted, std::int64_t count) {
    return wanted ? carve.take<std::uint32_t>(count) : nullptr;
  };
  wide_q = floats(wide, kQueries * d);
  wide_k = floats(wide, keys_all * d);
  wide_v = floats(wide, keys_all * d);
  wide_dout = floats(wide && backward, kQueries * d);
  keys_t = words(true, product.packed_words(d, keys_all));
  values = words(!backward, product.packed_words(keys_all, d));
  values_t = words(backward, product.packed_words(d, keys_all));
  keys = words(backward, product.packed_words(keys_all, d));
  queries = words(backward, product.packed_words(kQueries, d));
  douts = words(backward, product.packed_words(kQueries, d));
  scores = floats(true, tile);
  dp = floats(backward, tile);
  out = floats(true, kQueries * width);  // backward: dq
  dk = floats(backward, keys_all * width);
  dv = floats(backward, keys_all * width);
  key_bias = floats(shown_keys_of(s) || s.sequences.defined(), whole_panels(keys_all) + columns);
  row_bias = floats(s.window > 0, 2 * columns);
  p = pairs && !backward ? carve.take<std::uint16_t>(tile) : nullptr;
  ds_rows = pairs && backward ? carve.take<std::uint16_t>(tile) : nullptr;
  p_pairs = words(pairs && backward, tile / 2);
  ds_pairs = words(pairs && backward, tile / 2);
  random = words(s.dropout > 0, 2 * (columns + 256));
  largest = floats(true, kQueries);
  sum = floats(true, kQueries);
  delta = floats(backward, kQueries);
}

// Work on one (batch, head). In backward, also on the following query heads that read the same key
// head.
class HeadTask {
 public:
  HeadTask(const AttentionShape& shape, const TileProduct& product, const Workspace& work,
           std::int64_t batch, std::int64_t head)
      : s_(shape),
        product_(product),
        w_(work),
        batch_(batch),
        head_(head),
        kept_row_(shape.kept.defined() ? kept_row_bytes(shape.key_length) : 0),
        keys_shown_(shape.key_length) {
    if (const std::int32_t* lengths = key_lengths_of(s_))
      keys_shown_ = std::min<std::int64_t>(lengths[batch], s_.key_length);
    const std::uint8_t* mask = shown_keys_of(s_);
    if (!mask) return;
    mask += batch * s_.key_length;
    for (std::int64_t j = 0; j < s_.key_length; ++j)
      w_.key_bias[j] = mask[j] ? 0.0f : -__builtin_inff();
  }

  // Processes query blocks first, first + step, ...
  void forward(HeadsView q, HeadsView k, HeadsView v, MutableHeadsView out, float* log_sum_exp,
               std::int64_t first, std::int64_t step) const;
  void backward(HeadsView q, HeadsView k, HeadsView v, HeadsView out, const float* log_sum_exp,
                HeadsView dout, MutableHeadsView dq, MutableHeadsView dk, MutableHeadsView dv,
                float* bias_sums);

 private:
  std::int64_t key_head() const { return head_ / heads_per_key_head(s_); }
  const char* base(const void* data, std::int64_t batch_stride, std::int64_t head) const {
    return static_cast<const char*>(data) + (batch_ * batch_stride + head * s_.head_dim) *
                                                static_cast<std::int64_t>(size_of(s_.dtype));
  }
  Rows rows_of(HeadsView view, std::int64_t head) const {
    return {base(view.data, view.batch_stride, head), view.row_stride,
            static_cast<std::int64_t>(size_of(s_.dtype))};
  }
  Rows rows_of(HeadsView view) const { return rows_of(view, head_); }
  char* row(MutableHeadsView view, std::int64_t t, std::int64_t head) const {
    return const_cast<char*>(base(view.data, view.batch_stride, head)) +
           t * view.row_stride * static_cast<std::int64_t>(size_of(s_.dtype));
  }
  // Returns an f32 copy if the words are f32 and the tensor is not.
  Rows words_of(Rows rows, std::int64_t count, float* wide) const {
    if (!wide) return rows;
    widen_rows(s_.dtype, rows.data, rows.stride, count, s_.head_dim, wide);
    return {reinterpret_cast<const char*>(wide), s_.head_dim, 4};
  }
  // Keys [first, end) that the queries of a block may see. `first` is rounded down to a panel
  // boundary of the packed operand; the bias hides keys before the sequence's own and the window's.
  TokenRange keys_seen(TokenRange sequence, std::int64_t query, std::int64_t rows) const {
    const std::int64_t first = std::max(sequence.begin, hidden_keys(s_, query));
    return {first / TileProduct::kMaxPanelWidth * TileProduct::kMaxPanelWidth,
            std::min({visible_keys(s_, query + rows - 1), keys_shown_, sequence.end})};
  }
  // Calls block(query, rows, sequence) for all queries. A block never spans two sequences.
  template <typename Block>
  void each_block(const Block& block) const {
    for (std::int64_t begin = 0, end = 0; begin < s_.query_length; begin = end) {
      TokenRange sequence{0, s_.key_length};
      end = s_.query_length;
      if (s_.sequences.defined()) {
        sequence = sequence_of(s_, batch_, begin);
        end = sequence.end;
        const std::int64_t first = keys_seen(sequence, begin, 1).begin;
        std::fill(w_.key_bias + first, w_.key_bias + begin, -__builtin_inff());
        std::fill(w_.key_bias + begin, w_.key_bias + end, 0.0f);
      }
      for (std::int64_t query = begin; query < end; query += kQueries)
        block(query, std::min(kQueries, end - query), sequence);
    }
  }
  ScoreTile tile(std::int64_t query, std::int64_t rows, std::int64_t key, std::int64_t columns,
                 std::int64_t stride) const {
    ScoreTile t;
    t.shape = &s_;
    t.batch = batch_;
    t.head = head_;
    t.query = query;
    t.key = key;
    t.rows = rows;
    t.columns = columns;
    t.key_bias = w_.key_bias ? w_.key_bias + key : nullptr;
    t.row_bias = w_.row_bias;
    t.scores = w_.scores;
    t.scale = s_.soft_cap > 0 ? 1 : s_.scale;
    t.stride = stride;
    t.word = product_.word();
    t.random = w_.random;
    if (s_.kept.defined())
      t.kept = s_.kept.as<std::uint8_t>() +
               ((batch_ * s_.heads + head_) * s_.query_length + query) * kept_row_ + key / 8;
    return t;
  }
  // Scores of a tile: the product, with the soft cap or the relative bias.
  ScoreTile scores(const Rows& q, std::int64_t query, std::int64_t rows, std::int64_t key,
                   std::int64_t columns, std::int64_t stride) const {
    score_product(q, w_.keys_t, rows, key, columns, w_.scores, stride);
    const ScoreTile made = tile(query, rows, key, columns, stride);
    if (s_.relative_bias.defined()) add_relative_bias(made);
    if (s_.soft_cap > 0) cap_scores(made);
    return made;
  }
  // c [rows, columns] = a [rows, head_dim] · (packed transposed rows, starting at `key`)ᵀ
  void score_product(const Rows& a, const std::uint32_t* packed, std::int64_t rows,
                     std::int64_t key, std::int64_t columns, float* c, std::int64_t stride) const {
    const std::int64_t words = product_.words(s_.head_dim);
    product_.multiply(
        {a.operand(), packed + key * words, words, 0, c, stride, rows, columns, words, false});
  }
  void gradients_of_block(const Rows& q, const Rows& dout, const float* log_sum_exp,
                          TokenRange sequence, std::int64_t query, std::int64_t rows,
                          float* bias_sums) const;

  const AttentionShape& s_;
  const TileProduct& product_;
  const Workspace& w_;
  std::int64_t batch_, head_, kept_row_;
  std::int64_t keys_shown_;  // number of visible keys of the batch row, from key 0
};

void HeadTask::forward(HeadsView q_view, HeadsView k_view, HeadsView v_view, MutableHeadsView out,
                       float* log_sum_exp, std::int64_t first, std::int64_t step) const {
  const std::int64_t d = s_.head_dim, width = whole_panels(d), keys_all = s_.key_length,
                     stride = tile_stride(keys_all, kForwardKeys);
  const Rows k = words_of(rows_of(k_view, key_head()), keys_all, w_.wide_k),
             v = words_of(rows_of(v_view, key_head()), keys_all, w_.wide_v);
  product_.pack_transposed(k.data, keys_all, d, k.stride, w_.keys_t);
  product_.pack(v.data, keys_all, d, v.stride, w_.values);
  const bool pairs = product_.word() == TileWord::bf16_pair;
  void* p = pairs ? static_cast<void*>(w_.p) : w_.scores;
  std::int64_t block = 0;
  each_block([&](std::int64_t query, std::int64_t rows, TokenRange sequence) {
    if (block++ % step != first) return;
    const Rows q = words_of(rows_of(q_view).from(query), rows, w_.wide_q);
    std::fill_n(w_.largest, rows, -__builtin_inff());
    std::fill_n(w_.sum, rows, 0.0f);
    std::fill_n(w_.out, rows * width, 0.0f);
    const TokenRange seen = keys_seen(sequence, query, rows);
    for (std::int64_t key = seen.begin; key < seen.end; key += kForwardKeys) {
      const std::int64_t columns = std::min(kForwardKeys, seen.end - key);
      softmax_tile(scores(q, query, rows, key, columns, stride), p, w_.largest, w_.sum, w_.out, d,
                   width);
      product_.multiply({{p, stride * (pairs ? 2 : 4), 4},
                         w_.values,
                         product_.words(keys_all),
                         product_.words(key),
                         w_.out,
                         width,
                         rows,
                         d,
                         product_.words(columns),
                         true});
    }
    finish_rows(s_, w_.out, width, rows, w_.largest, w_.sum, row(out, query, head_), out.row_stride,
                log_sum_exp ? log_sum_exp + query : nullptr);
  });
}

// Adds the contribution of a block of queries to dk, dv and, unless null, bias_sums. Writes its dq
// to w_.out.
void HeadTask::gradients_of_block(const Rows& q, const Rows& dout, const float* log_sum_exp,
                                  TokenRange sequence, std::int64_t query, std::int64_t rows,
                                  float* bias_sums) const {
  const std::int64_t d = s_.head_dim, width = whole_panels(d), keys_all = s_.key_length,
                     stride = tile_stride(keys_all, kBackwardKeys);
  product_.pack(q.data, rows, d, q.stride, w_.queries);
  product_.pack(dout.data, rows, d, dout.stride, w_.douts);
  std::fill_n(w_.out, rows * width, 0.0f);
  const bool pairs = product_.word() == TileWord::bf16_pair;
  const std::int64_t row_words = product_.words(rows);
  const TokenRange seen = keys_seen(sequence, query, rows);
  const void* p = pairs ? static_cast<void*>(w_.p_pairs) : w_.scores;
  const void* ds = pairs ? static_cast<void*>(w_.ds_pairs) : w_.dp;
  const TileOperand ds_rows{pairs ? static_cast<void*>(w_.ds_rows) : w_.dp,
                            stride * (pairs ? 2 : 4), 4};
  for (std::int64_t key = seen.begin; key < seen.end; key += kBackwardKeys) {
    const std::int64_t columns = std::min(kBackwardKeys, seen.end - key);
    const ScoreTile scored = scores(q, query, rows, key, columns, stride);
    score_product(dout, w_.values_t, rows, key, columns, w_.dp, stride);
    score_gradients(scored, {w_.dp, log_sum_exp, w_.delta, w_.p_pairs, w_.ds_pairs, w_.ds_rows});
    if (bias_sums) sum_relative_bias(scored, ds_rows.data, bias_sums);
    // Transposed: rows are keys, words are queries (or pairs of them).
    const auto add_to = [&](const void* tile, const std::uint32_t* packed, float* sums) {
      product_.multiply({{tile, 4, stride * 4},
                         packed,
                         row_words,
                         0,
                         sums + key * width,
                         width,
                         columns,
                         d,
                         row_words,
                         true});
    };
    add_to(p, w_.douts, w_.dv);
    add_to(ds, w_.queries, w_.dk);
    product_.multiply({ds_rows, w_.keys, product_.words(keys_all), product_.words(key), w_.out,
                       width, rows, d, product_.words(columns), true});
  }
}

void HeadTask::backward(HeadsView q_view, HeadsView k_view, HeadsView v_view, HeadsView out,
                        const float* log_sum_exp, HeadsView dout_view, MutableHeadsView dq,
                        MutableHeadsView dk, MutableHeadsView dv, float* bias_sums) {
  const std::int64_t d = s_.head_dim, width = whole_panels(d), keys_all = s_.key_length,
                     key_head = this->key_head(), group = heads_per_key_head(s_);
  const Rows k = words_of(rows_of(k_view, key_head), keys_all, w_.wide_k),
             v = words_of(rows_of(v_view, key_head), keys_all, w_.wide_v);
  product_.pack_transposed(k.data, keys_all, d, k.stride, w_.keys_t);
  product_.pack_transposed(v.data, keys_all, d, v.stride, w_.values_t);
  product_.pack(k.data, keys_all, d, k.stride, w_.keys);
  std::fill_n(w_.dk, keys_all * width, 0.0f);
  std::fill_n(w_.dv, keys_all * width, 0.0f);
  for (const std::int64_t end = head_ + group; head_ < end;
       ++head_, log_sum_exp += s_.query_length) {
    if (bias_sums) std::fill_n(bias_sums, relative_positions(s_), 0.0f);
    each_block([&](std::int64_t query, std::int64_t rows, TokenRange sequence) {
      const Rows dout = rows_of(dout_view).from(query);
      row_dots(s_, dout.data, dout.stride, rows_of(out).from(query).data, out.row_stride, rows,
               w_.delta);
      gradients_of_block(words_of(rows_of(q_view).from(query), rows, w_.wide_q),
                         words_of(dout, rows, w_.wide_dout), log_sum_exp + query, sequence, query,
                         rows, bias_sums);
      narrow_rows(s_.dtype, w_.out, width, rows, d, s_.scale, row(dq, query, head_), dq.row_stride);
    });
    if (bias_sums) bias_sums += relative_positions(s_);
  }
  narrow_rows(s_.dtype, w_.dk, width, keys_all, d, s_.scale, row(dk, 0, key_head), dk.row_stride);
  narrow_rows(s_.dtype, w_.dv, width, keys_all, d, kept_scale(s_), row(dv, 0, key_head),
              dv.row_stride);
}

class CpuAttention final : public AttentionKernels {
 public:
  CpuAttention(const CpuResources& resources, bool bf16_pairs)
      : resources_(resources),
        bf16_pairs_(bf16_pairs && has_bf16_pairs()),
        scratch_(*resources.memory),
        bias_sums_(*resources.memory) {}

  std::int64_t kept_bytes(const AttentionShape& s) const override {
    return s.dropout > 0 ? s.batch * s.heads * s.query_length * kept_row_bytes(s.key_length) : 0;
  }

  void attention(const AttentionShape& shape, HeadsView q, HeadsView k, HeadsView v,
                 MutableHeadsView out, View log_sum_exp, Stream) override {
    check_shape(shape);
    check_log_sum_exp(shape, log_sum_exp);
    const std::int64_t heads = shape.batch * shape.heads,
                       blocks = (shape.query_length + kQueries - 1) / kQueries;
    if (heads == 0 || blocks == 0 || shape.head_dim == 0) return;
    // With few heads, several threads share one head, and each packs the keys itself.
    const std::int64_t splits =
        std::clamp<std::int64_t>((resources_.threads + heads - 1) / heads, 1, blocks);
    float* lse = log_sum_exp.defined() ? log_sum_exp.as<float>() : nullptr;
    run(shape, heads * splits, false,
        [&](const TileProduct& product, const Workspace& work, std::int64_t task) {
          const std::int64_t head = task / splits;
          HeadTask(shape, product, work, head / shape.heads, head % shape.heads)
              .forward(q, k, v, out, lse ? lse + head * shape.query_length : nullptr, task % splits,
                       splits);
        });
  }

  void attention_backward(const AttentionShape& shape, HeadsView q, HeadsView k, HeadsView v,
                          HeadsView out, ConstView log_sum_exp, HeadsView dout, MutableHeadsView dq,
                          MutableHeadsView dk, MutableHeadsView dv, Stream) override {
    check_shape(shape);
    check_log_sum_exp(shape, log_sum_exp);
    const std::int64_t heads = shape.batch * shape.heads;
    // One sum per batch row and head, added over the batch at the end in a fixed order.
    const bool sums_bias = shape.relative_bias_gradient.defined();
    const std::int64_t positions = relative_positions(shape);
    float* const bias_sums = sums_bias ? bias_sums_.of<float>(heads * positions) : nullptr;
    if (sums_bias)
      std::fill_n(shape.relative_bias_gradient.as<float>(), shape.heads * positions, 0.0f);
    if (heads == 0 || shape.head_dim == 0) return;
    const float* lse = log_sum_exp.defined() ? log_sum_exp.as<float>() : nullptr;
    SHOAL_CHECK(lse || shape.query_length == 0, "attention_backward: no log_sum_exp");
    const std::int64_t group = heads_per_key_head(shape);
    run(shape, heads / group, true,
        [&](const TileProduct& product, const Workspace& work, std::int64_t task) {
          const std::int64_t head = task * group;
          HeadTask(shape, product, work, head / shape.heads, head % shape.heads)
              .backward(q, k, v, out, lse + head * shape.query_length, dout, dq, dk, dv,
                        sums_bias ? bias_sums + head * positions : nullptr);
        });
    for (std::int64_t i = 0; sums_bias && i < heads * positions; ++i)
      shape.relative_bias_gradient.as<float>()[i % (shape.heads * positions)] += bias_sums[i];
  }

 private:
  void check_shape(const AttentionShape& s) const {
    check_attention(s);
    SHOAL_CHECK(!s.kept.defined() || (s.kept.dtype == DType::u8 && kept_bytes(s) > 0 &&
                                      s.kept.shape.count() == kept_bytes(s)),
                "attention: kept is {} {}, not {} of u8", to_string(s.kept.dtype),
                to_string(s.kept.shape), kept_bytes(s));
  }
  static void check_log_sum_exp(const AttentionShape& s, const ConstView& view) {
    SHOAL_CHECK(!view.defined() || (view.dtype == DType::f32 &&
                                    view.shape.count() == s.batch * s.heads * s.query_length),
                "attention: log_sum_exp is {} {}, not f32 [{}, {}, {}]", to_string(view.dtype),
                to_string(view.shape), s.batch, s.heads, s.query_length);
  }

  // Calls task(product, workspace, index) for [0, tasks), with one workspace per thread.
  template <typename Task>
  void run(const AttentionShape& shape, std::int64_t tasks, bool backward, const Task& task) {
    const bool pairs = bf16_pairs_ && shape.dtype == DType::bf16 && shape.head_dim % 2 == 0;
    const TileProduct& product = pairs ? pairs_ : floats_;
    Carver count(nullptr);
    (void)Workspace(count, shape, product, backward);
    const std::int64_t pieces = std::min<std::int64_t>(tasks, resources_.threads);
    char* memory = static_cast<char*>(scratch_.bytes(pieces * count.used()));
    parallel_for(resources_.threads, pieces, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t piece = first; piece < last; ++piece) {
        Carver carve(memory + piece * count.used());
        const Workspace work(carve, shape, product, backward);
        for (std::int64_t i = tasks * piece / pieces; i < tasks * (piece + 1) / pieces; ++i)
          task(product, work, i);
      }
    });
  }

  CpuResources resources_;
  bool bf16_pairs_;
  TileProduct floats_{TileWord::f32}, pairs_{TileWord::bf16_pair};
  Scratch scratch_, bias_sums_;
};

}  // namespace

std::unique_ptr<AttentionKernels> make_cpu_attention(const CpuResources& resources,
                                                     bool bf16_pairs) {
  return std::make_unique<CpuAttention>(resources, bf16_pairs);
}

}  // namespace shoal::kernels
