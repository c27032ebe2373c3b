#include "shoal/kernels/cuda/attention_products.h"

#include <algorithm>

namespace shoal::kernels {
namespace {

std::size_t whole_lines(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

// One piece of a call.
struct AttentionProducts::Call {
  const AttentionShape& shape;
  Stream stream;
  float* log_sum_exp;
  const FlashRange* sequences;
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  std::int64_t first_batch = 0, first_head = 0, first_query = 0;

  std::int64_t leading() const { return score_leading(shape.key_length); }
  std::int64_t scores() const { return batch * heads * queries * leading(); }
};

// One row-major matrix per head and batch row.
struct AttentionProducts::Operand {
  void* data;
  std::int64_t leading, batch_stride, head_stride;  // elements

  // A tensor of the call, starting at `row`.
  static Operand tensor(const Call& c, HeadsView view, std::int64_t row) {
    const std::int64_t first =
        c.first_batch * view.batch_stride + row * view.row_stride + c.first_head * c.shape.head_dim;
    char* const base = static_cast<char*>(const_cast<void*>(view.data));
    return {base + first * static_cast<std::int64_t>(size_of(c.shape.dtype)), view.row_stride,
            view.batch_stride, c.shape.head_dim};
  }
  static Operand score(const Call& c, void* data) {
    const std::int64_t head = c.queries * c.leading();
    return {data, c.leading(), c.heads * head, head};
  }
};

struct AttentionProducts::Product {
  std::int64_t m, n, k;
  Operand a, b, c;
  bool transpose_a = false, transpose_b = false;
  DType output;
  bool adds = false;
};

// A product has only one stride between groups, so its groups are either heads or batch rows. Takes
// whichever needs fewer calls.
void AttentionProducts::multiply(const Call& call, const Product& p) const {
  const bool by_batch = call.batch <= call.heads;
  GemmArgs args;
  args.m = p.m, args.n = p.n, args.k = p.k;
  args.groups = by_batch ? call.heads : call.batch;
  args.transpose_a = p.transpose_a, args.transpose_b = p.transpose_b;
  args.input = call.shape.dtype;
  args.output = p.output;
  args.beta = p.adds ? 1.0f : 0.0f;
  const std::int64_t calls = by_batch ? call.batch : call.heads;
  for (std::int64_t i = 0; i < calls; ++i) {
    const auto matrix = [&](const Operand& operand, DType dtype) {
      const std::int64_t step = by_batch ? operand.batch_stride : operand.head_stride,
                         group = by_batch ? operand.head_stride : operand.batch_stride;
      return GemmMatrix{
          static_cast<char*>(operand.data) + i * step * static_cast<std::int64_t>(size_of(dtype)),
          operand.leading, group};
    };
    args.a = matrix(p.a, args.input);
    args.b = matrix(p.b, args.input);
    args.c = matrix(p.c, args.output);
    gemm_.run(args, call.stream);
  }
}

ScoreRows AttentionProducts::rows_of(const Call& c) const {
  const AttentionShape& s = c.shape;
  ScoreRows rows;
  rows.batch = c.batch, rows.heads = c.heads, rows.queries = c.queries, rows.keys = c.keys;
  rows.first_batch = c.first_batch, rows.first_head = c.first_head;
  rows.first_query = c.first_query;
  rows.leading = c.leading();
  rows.whole_heads = s.heads, rows.whole_queries = s.query_length, rows.whole_keys = s.key_length;
  rows.scale = s.scale, rows.soft_cap = s.soft_cap;
  rows.causal = s.causal;
  rows.window = s.window;
  rows.key_mask = shown_keys_of(s);
  rows.key_lengths = key_lengths_of(s);
  rows.sequences = c.sequences;
  rows.log_sum_exp = c.log_sum_exp;
  rows.relative_bias = static_cast<const float*>(s.relative_bias.data);
  rows.drops = s.dropout > 0;
  rows.dropout.site = s.site;
  rows.dropout.threshold = dropout_threshold(s.dropout);
  rows.dropout.max_positions = s.max_positions;
  rows.dropout.head_offset = s.head_offset;
  rows.keep_scale = 1 / (1 - s.dropout);
  return rows;
}

// Calls piece(call) for every piece. The pieces of one head come in the order of its queries.
template <class Piece>
void AttentionProducts::each_piece(Call& call, std::int64_t bytes_of_score,
                                   const Piece& piece) const {
  const AttentionShape& s = call.shape;
  const ScorePiece most = score_piece(s, bytes_of_score, workspace_);
  for (call.first_batch = 0; call.first_batch < s.batch; call.first_batch += most.batch)
    for (call.first_head = 0; call.first_head < s.heads; call.first_head += most.heads)
      for (call.first_query = 0;;) {
        call.batch = std::min(most.batch, s.batch - call.first_batch);
        call.heads = std::min(most.heads, s.heads - call.first_head);
        call.queries = std::min(most.queries, s.query_length - call.first_query);
        const std::int64_t end = call.first_query + call.queries;
        call.keys = end == 0 ? 0 : visible_keys(s, end - 1);
        piece();
        call.first_query = end;
        if (end >= s.query_length) break;
      }
}

void AttentionProducts::scores(const Call& c, HeadsView rows, HeadsView columns, float* to) const {
  multiply(c, {.m = c.queries,
               .n = c.keys,
               .k = c.shape.head_dim,
               .a = Operand::tensor(c, rows, c.first_query),
               .b = Operand::tensor(c, columns, 0),
               .c = Operand::score(c, to),
               .transpose_b = true,
               .output = DType::f32});
}

void AttentionProducts::forward(const AttentionShape& s, const FlashRange* sequences, HeadsView q,
                                HeadsView k, HeadsView v, MutableHeadsView out, float* log_sum_exp,
                                Stream stream) {
  Call call{s, stream, log_sum_exp, sequences};
  const bool apart = s.dtype != DType::f32;  // probabilities do not share the scores' memory
  const Launch at{resources_.begin(stream), resources_.multiprocessors()};
  each_piece(call, apart ? 6 : 4, [&] {
    const auto count = static_cast<std::size_t>(call.scores());
    const std::size_t wide = whole_lines(4 * count);
    const Buffer scratch = resources_.scratch(wide + (apart ? whole_lines(2 * count) : 0), stream);
    auto* const score = static_cast<float*>(scratch.data());
    void* const probability = apart ? static_cast<char*>(scratch.data()) + wide : scratch.data();
    scores(call, q, k, score);
    check_cuda(launch_softmax(at, s.dtype, rows_of(call), score, probability),
               "attention's softmax");
    multiply(call, {.m = call.queries,
                    .n = s.head_dim,
                    .k = call.keys,
                    .a = Operand::score(call, probability),
                    .b = Operand::tensor(call, v, 0),
                    .c = Operand::tensor(call, view_of(out), call.first_query),
                    .output = s.dtype});
  });
}

void AttentionProducts::backward(const AttentionShape& s, const FlashRange* sequences, HeadsView q,
                                 HeadsView k, HeadsView v, const float* log_sum_exp, HeadsView dout,
                                 MutableHeadsView dq, MutableHeadsView dk, MutableHeadsView dv,
                                 Stream stream) {
  Call call{s, stream, const_cast<float*>(log_sum_exp), sequences};
  const bool apart = s.dtype != DType::f32;
  const Launch at{resources_.begin(stream), resources_.multiprocessors()};
  Buffer sums;  // dk and dv of a head whose queries are split into pieces, f32 [keys, head_dim]
  each_piece(call, apart ? 12 : 8, [&] {
    const auto count = static_cast<std::size_t>(call.scores());
    const std::size_t wide = whole_lines(4 * count), narrow = apart ? whole_lines(2 * count) : 0;
    const Buffer scratch =
        resources_.scratch(std::max<std::size_t>(2 * (wide + narrow), 256), stream);
    char* const base = static_cast<char*>(scratch.data());
    auto* const score = reinterpret_cast<float*>(base);
    auto* const gradient = reinterpret_cast<float*>(base + wide);
    void* const probability = apart ? base + 2 * wide : base;
    void* const dscore = apart ? base + 2 * wide + narrow : base + wide;
    scores(call, q, k, score);
    scores(call, dout, v, gradient);
    check_cuda(
        launch_softmax_gradient(at, s.dtype, rows_of(call), score, gradient, probability, dscore),
        "attention's gradient of scores");
    if (s.relative_bias_gradient.defined())
      check_cuda(launch_sum_relative_bias(at, s.dtype, rows_of(call), dscore,
                                          static_cast<float*>(s.relative_bias_gradient.data)),
                 "attention's gradient of its relative bias");
    multiply(call, {.m = call.queries,
                    .n = s.head_dim,
                    .k = call.keys,
                    .a = Operand::score(call, dscore),
                    .b = Operand::tensor(call, k, 0),
                    .c = Operand::tensor(call, view_of(dq), call.first_query),
                    .output = s.dtype});

    const bool whole = call.queries == s.query_length;
    const std::int64_t of_keys = s.key_length * s.head_dim;
    if (!whole && call.first_query == 0) {
      const std::size_t bytes = 2 * sizeof(float) * static_cast<std::size_t>(of_keys);
      if (!sums) sums = resources_.scratch(bytes, stream);
      check_cuda(cudaMemsetAsync(sums.data(), 0, bytes, at.stream), "clearing sums");
    }
    auto* const sum = static_cast<float*>(sums.data());
    const auto by_keys = [&](void* left, HeadsView right, MutableHeadsView to, float* part) {
      multiply(call, {.m = whole ? s.key_length : call.keys,
                      .n = s.head_dim,
                      .k = call.queries,
                      .a = Operand::score(call, left),
                      .b = Operand::tensor(call, right, call.first_query),
                      .c = whole ? Operand::tensor(call, view_of(to), 0)
                                 : Operand{part, s.head_dim, 0, 0},
                      .transpose_a = true,
                      .output = whole ? s.dtype : DType::f32,
                      .adds = !whole});
      if (whole || call.first_query + call.queries < s.query_length) return;
      check_cuda(launch_round_rows(at, s.dtype, part, s.key_length, s.head_dim, to.row_stride,
                                   Operand::tensor(call, view_of(to), 0).data),
                 "rounding gradients of keys");
    };
    by_keys(probability, dout, dv, sum);
    by_keys(dscore, q, dk, sum + of_keys);
  });
}

}  // namespace shoal::kernels
