// Rows of kernels bound by matrix products, compared with the peak of multiply-adds.
#include <cmath>

#include "rows.h"
#include <fmt/format.h>

namespace shoal::bench {
namespace {

using namespace kernels;

constexpr std::int64_t kTokens = 2048, kWidth = 768, kHeads = 12, kLength = 512;

Row row_of(const char* operation, DType dtype, const std::string& shape, std::int64_t operations) {
  Row row;
  row.operation = operation;
  row.dtype = to_string(dtype);
  row.shape = shape;
  row.operations = operations;
  return row;
}

void add_matmuls(Bench& bench, DType dtype) {
  auto& k = bench.kernels().matmul();
  const std::int64_t shapes[][2] = {
      {kWidth, 3 * kWidth}, {kWidth, kWidth}, {kWidth, 4 * kWidth}, {4 * kWidth, kWidth}};
  for (const auto& [inputs, outputs] : shapes) {
    const View x = bench.tensor(Shape{kTokens, inputs}, dtype);
    const View w = bench.tensor(Shape{inputs, outputs}, dtype);
    const View y = bench.tensor(Shape{kTokens, outputs}, dtype);
    const View dx = bench.tensor(Shape{kTokens, inputs}, dtype);
    const View dw = bench.tensor(Shape{inputs, outputs}, DType::f32);
    const std::string shape = fmt::format("[{}, {}] x [{}, {}]", kTokens, inputs, inputs, outputs);
    const std::int64_t operations = 2 * kTokens * inputs * outputs;
    const auto add = [&](const char* name, ConstView a, ConstView b, View c, bool transpose_a,
                         bool transpose_b, bool accumulate) {
      MatmulArgs args;
      args.a = a;
      args.b = b;
      args.c = c;
      args.transpose_a = transpose_a;
      args.transpose_b = transpose_b;
      args.accumulate = accumulate;
      bench.add_row(row_of(name, dtype, shape, operations), Bound::products,
                    [=, &k] { k.matmul(args, {}); });
    };
    add("matmul", x, w, y, false, false, false);
    add("matmul_dgrad", y, w, dx, false, true, false);
    add("matmul_wgrad", x, y, dw, true, false, true);
  }
}

// A feed-forward layer with its activation fused into the products: y = gelu(x·w + b), saving what
// backward needs, and dy·wᵀ ⊙ gelu'.
void add_activated(Bench& bench, DType dtype) {
  auto& k = bench.kernels().matmul();
  const Shape narrow{kTokens, kWidth}, wide{kTokens, 4 * kWidth};
  const std::int64_t operations = 2 * kTokens * kWidth * 4 * kWidth;
  const std::string shape = fmt::format("[{}, {}] x [{}, {}]", kTokens, kWidth, kWidth, 4 * kWidth);
  MatmulArgs forward;
  forward.a = bench.tensor(narrow, dtype);
  forward.b = bench.tensor(Shape{kWidth, 4 * kWidth}, dtype);
  forward.bias = bench.tensor(Shape{4 * kWidth}, dtype);
  forward.activation = Activation::gelu_tanh;
  forward.c = bench.tensor(wide, dtype);
  forward.pre_activation = bench.tensor(wide, dtype);
  bench.add_row(row_of("matmul_gelu", dtype, shape, operations), Bound::products,
                [=, &k] { k.matmul(forward, {}); });
  MatmulArgs backward;
  backward.a = forward.a;
  backward.b = bench.tensor(Shape{4 * kWidth, kWidth}, dtype);
  backward.transpose_b = true;
  backward.activation = Activation::gelu_tanh;
  backward.activation_input = forward.pre_activation;
  backward.c = forward.c;
  bench.add_row(row_of("matmul_dgelu", dtype, shape, operations), Bound::products,
                [=, &k] { k.matmul(backward, {}); });
}

// Products of attention with materialised scores: 48 heads of 64.
void add_batched(Bench& bench, DType dtype) {
  auto& k = bench.kernels().matmul();
  constexpr std::int64_t kGroups = kTokens / kLength * kHeads, kHeadDim = kWidth / kHeads;
  MatmulArgs args;
  args.a = bench.tensor(Shape{kGroups, kLength, kHeadDim}, dtype);
  args.b = bench.tensor(Shape{kGroups, kLength, kHeadDim}, dtype);
  args.c = bench.tensor(Shape{kGroups, kLength, kLength}, dtype);
  args.transpose_b = true;
  bench.add_row(row_of("batched_matmul", dtype, "48 x [512, 64] x [64, 512]",
                       2 * kGroups * kLength * kLength * kHeadDim),
                Bound::products, [=, &k] { k.batched_matmul(args, {}); });
}

// GPT-2's (causal) and an encoder's (all keys, dropout) attention.
void add_attention(Bench& bench, DType dtype, std::int64_t length, bool causal,
                   std::int64_t window = 0, float soft_cap = 0) {
  auto& k = bench.kernels().attention();
  const std::int64_t batch = 4, tokens = batch * length;
  const View qkv = bench.tensor(Shape{tokens, 3 * kWidth}, dtype);
  const View out = bench.tensor(Shape{tokens, kWidth}, dtype);
  const View dqkv = bench.tensor(Shape{tokens, 3 * kWidth}, dtype);
  const View log_sum_exp = bench.tensor(Shape{batch, kHeads, length}, DType::f32);
  AttentionShape shape;
  shape.batch = batch;
  shape.heads = kHeads;
  shape.query_length = shape.key_length = length;
  shape.head_dim = kWidth / kHeads;
  shape.dtype = dtype;
  shape.causal = causal;
  shape.window = window;
  shape.soft_cap = soft_cap;
  if (!causal) shape.dropout = 0.1f;
  shape.max_positions = length;
  shape.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  const auto part = [&](const View& fused, std::int64_t index) {
    const auto offset = index * kWidth * static_cast<std::int64_t>(size_of(dtype));
    return MutableHeadsView{static_cast<std::byte*>(fused.data) + offset, length * 3 * kWidth,
                            3 * kWidth};
  };
  const auto read = [](MutableHeadsView view) {
    return HeadsView{view.data, view.batch_stride, view.row_stride};
  };
  const HeadsView q = read(part(qkv, 0)), key = read(part(qkv, 1)), value = read(part(qkv, 2));
  const MutableHeadsView o{out.data, length * kWidth, kWidth};
  const MutableHeadsView dq = part(dqkv, 0), dk = part(dqkv, 1), dv = part(dqkv, 2);
  // Two products forward and five backward; causal masking removes half of each, a window more.
  const std::int64_t scores =
      (causal ? 1 : 2) * (window > 0 ? window * (2 * length - window) : length * length);
  const std::int64_t product = shape.batch * scores * kWidth;
  const std::string text = fmt::format("B {}, T {}, {} heads of 64, {}{}{}", batch, length, kHeads,
                                       causal ? "causal" : "dropout",
                                       window > 0 ? fmt::format(", window {}", window) : "",
                                       soft_cap > 0 ? fmt::format(", cap {}", soft_cap) : "");
  bench.add_row(row_of("attention", dtype, text, 2 * product), Bound::products,
                [=, &k] { k.attention(shape, q, key, value, o, log_sum_exp, {}); });
  bench.add_row(row_of("attention_backward", dtype, text, 5 * product), Bound::products, [=, &k] {
    k.attention_backward(shape, q, key, value, read(o), log_sum_exp, read(o), dq, dk, dv, {});
  });
}

void add_head(Bench& bench, DType dtype, float soft_cap) {
  auto& k = bench.kernels().loss();
  constexpr std::int64_t kRows = 512, kVocabulary = 50257;
  LinearCrossEntropyArgs args;
  args.x = bench.tensor(Shape{kRows, kWidth}, dtype);
  args.weight = bench.tensor(Shape{kVocabulary, kWidth}, dtype);
  args.targets = bench.tensor(Shape{kRows}, DType::i32);
  args.soft_cap = soft_cap;
  args.loss_sum = bench.tensor(Shape{1}, DType::f32);
  args.dx = bench.tensor(Shape{kRows, kWidth}, dtype);
  args.dweight = bench.tensor(Shape{kVocabulary, kWidth}, DType::f32);
  const std::string text = fmt::format("[512, 768] x [50257, 768], with gradients{}",
                                       soft_cap > 0 ? fmt::format(", cap {}", soft_cap) : "");
  bench.add_row(row_of("linear_cross_entropy", dtype, text, 6 * kRows * kWidth * kVocabulary),
                Bound::products, [=, &k] { k.linear_cross_entropy(args, {}); });
}

}  // namespace

void add_product_rows(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    add_matmuls(bench, dtype);
    add_activated(bench, dtype);
    add_batched(bench, dtype);
    add_attention(bench, dtype, kLength, true);
    for (const bool causal : {true, false})
      add_attention(bench, dtype, kLength, causal, kLength / 8);
    add_attention(bench, dtype, 384, false);
    add_attention(bench, dtype, kLength, true, 0, 50);
    for (const float soft_cap : {0.0f, 30.0f}) add_head(bench, dtype, soft_cap);
  }
}

}  // namespace shoal::bench
