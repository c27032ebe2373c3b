// Rows of kernels bound by memory, compared with a copy or read of as many bytes.
#include <array>

#include "rows.h"

namespace shoal::bench {
namespace {

using namespace kernels;

constexpr std::int64_t kTokens = 2048, kWidth = 768, kVocabulary = 50257, kPositions = 512;

// A row that moves `tensors` tensors of the shape.
Row row_of(const char* operation, DType dtype, const Shape& shape, std::int64_t tensors) {
  Row row;
  row.operation = operation;
  row.dtype = to_string(dtype);
  row.shape = to_string(shape);
  row.bytes = tensors * shape.count() * static_cast<std::int64_t>(size_of(dtype));
  return row;
}

DropoutArgs dropout_args() {
  DropoutArgs args;
  args.probability = 0.1f;
  args.site.seed = 1;
  args.rows_per_sample = kPositions;
  return args;
}

void add_elementwise(Bench& bench, DType dtype) {
  auto& k = bench.kernels().elementwise();
  const Shape narrow{kTokens, kWidth}, wide{kTokens, 4 * kWidth};
  const View a = bench.tensor(narrow, dtype), b = bench.tensor(narrow, dtype);
  const View c = bench.tensor(narrow, dtype), bias = bench.tensor(Shape{kWidth}, dtype);
  const View x = bench.tensor(wide, dtype), dy = bench.tensor(wide, dtype);
  const View y = bench.tensor(wide, dtype), flat = bench.tensor(Shape{4 * kWidth, kTokens}, dtype);
  bench.add_row(row_of("add", dtype, narrow, 3), Bound::copy, [=, &k] { k.add(a, b, c, {}); });
  bench.add_row(row_of("scale", dtype, narrow, 2), Bound::copy,
                [=, &k] { k.scale(a, 0.5f, c, {}); });
  bench.add_row(row_of("axpy", dtype, narrow, 3), Bound::copy,
                [=, &k] { k.axpy(1e-9f, a, c, {}); });
  bench.add_row(row_of("add_bias", dtype, narrow, 2), Bound::copy,
                [=, &k] { k.add_bias(a, bias, c, {}); });
  bench.add_row(row_of("transpose", dtype, wide, 2), Bound::copy,
                [=, &k] { k.transpose(x, flat, {}); });
  for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf}) {
    const bool tanh = kind == Activation::gelu_tanh;
    bench.add_row(row_of(tanh ? "gelu_tanh" : "gelu_erf", dtype, wide, 2), Bound::copy,
                  [=, &k] { k.activation(kind, x, y, {}); });
    bench.add_row(row_of(tanh ? "gelu_tanh_backward" : "gelu_erf_backward", dtype, wide, 3),
                  Bound::copy, [=, &k] { k.activation_backward(kind, x, dy, y, {}); });
  }
  bench.add_row(row_of("multiply", dtype, wide, 3), Bound::copy,
                [=, &k] { k.multiply(x, dy, y, {}); });
  bench.add_row(row_of("swiglu", dtype, wide, 3), Bound::copy, [=, &k] { k.swiglu(x, dy, y, {}); });
  const View dup = bench.tensor(wide, dtype), dout = bench.tensor(wide, dtype);
  bench.add_row(row_of("swiglu_backward", dtype, wide, 5), Bound::copy,
                [=, &k] { k.swiglu_backward(x, dy, dout, y, dup, {}); });
  const DropoutArgs args = dropout_args();
  bench.add_row(row_of("dropout", dtype, narrow, 2), Bound::copy,
                [=, &k] { k.dropout(args, a, c, {}); });
  bench.add_row(row_of("dropout_add", dtype, narrow, 3), Bound::copy,
                [=, &k] { k.dropout_add(args, a, b, c, {}); });
}

void add_fills_and_casts(Bench& bench) {
  auto& k = bench.kernels().elementwise();
  const Shape shape{kTokens, 4 * kWidth};
  const View f32 = bench.tensor(shape, DType::f32), bf16 = bench.tensor(shape, DType::bf16);
  Row row = row_of("cast_to_bf16", DType::f32, shape, 1);
  row.bytes += row.bytes / 2;
  bench.add_row(row, Bound::copy, [=, &k] { k.cast(f32, bf16, {}); });
  row.operation = "cast_from_bf16";
  bench.add_row(row, Bound::copy, [=, &k] { k.cast(bf16, f32, {}); });
  bench.add_row(row_of("fill", DType::f32, shape, 1), Bound::copy, [=, &k] { k.fill(f32, 1, {}); });
  bench.add_row(row_of("fill_normal", DType::f32, shape, 1), Bound::copy,
                [=, &k] { k.fill_normal(f32, 0, 0.02f, {}, 0, {}); });
  bench.add_row(row_of("fill_uniform", DType::f32, shape, 1), Bound::copy,
                [=, &k] { k.fill_uniform(f32, -1, 1, {}, 0, {}); });
}

void add_norms(Bench& bench, DType dtype) {
  auto& k = bench.kernels().norm();
  const Shape shape{kTokens, kWidth}, scores{kTokens, kPositions};
  LayerNormArgs forward;
  forward.x = bench.tensor(shape, dtype);
  forward.y = bench.tensor(shape, dtype);
  forward.gamma = bench.tensor(Shape{kWidth}, dtype);
  forward.beta = bench.tensor(Shape{kWidth}, dtype);
  forward.mean = bench.tensor(Shape{kTokens}, DType::f32);
  forward.rstd = bench.tensor(Shape{kTokens}, DType::f32);
  bench.add_row(row_of("layer_norm", dtype, shape, 2), Bound::copy,
                [=, &k] { k.layer_norm(forward, {}); });
  LayerNormArgs rms = forward;
  rms.beta = {};
  rms.mean = {};
  bench.add_row(row_of("rms_norm", dtype, shape, 2), Bound::copy,
                [=, &k] { k.layer_norm(rms, {}); });
  LayerNormArgs fused = forward;
  fused.residual = bench.tensor(shape, dtype);
  fused.sum = bench.tensor(shape, dtype);
  fused.dropout = dropout_args();
  bench.add_row(row_of("dropout_add_layer_norm", dtype, shape, 4), Bound::copy,
                [=, &k] { k.layer_norm(fused, {}); });
  LayerNormBackwardArgs backward;
  backward.dy = bench.tensor(shape, dtype);
  backward.x = forward.x;
  backward.gamma = forward.gamma;
  backward.mean = forward.mean;
  backward.rstd = forward.rstd;
  backward.dx = bench.tensor(shape, dtype);
  bench.add_row(row_of("layer_norm_backward", dtype, shape, 3), Bound::copy,
                [=, &k] { k.layer_norm_backward(backward, {}); });
  LayerNormBackwardArgs rms_backward = backward;
  rms_backward.mean = {};
  bench.add_row(row_of("rms_norm_backward", dtype, shape, 3), Bound::copy,
                [=, &k] { k.layer_norm_backward(rms_backward, {}); });
  const View dgamma = bench.tensor(Shape{kWidth}, DType::f32);
  const View dbeta = bench.tensor(Shape{kWidth}, DType::f32);
  bench.add_row(row_of("layer_norm_weight_gradient", dtype, shape, 2), Bound::read, [=, &k] {
    k.layer_norm_weight_gradient(backward.dy, backward.x, backward.mean, backward.rstd, dgamma,
                                 dbeta, false, {});
  });
  auto& matmul = bench.kernels().matmul();
  bench.add_row(row_of("sum_rows", dtype, shape, 1), Bound::read,
                [=, &matmul] { matmul.sum_rows(backward.dy, dbeta, false, {}); });
  const View x = bench.tensor(scores, dtype), y = bench.tensor(scores, dtype);
  const View dx = bench.tensor(scores, dtype);
  bench.add_row(row_of("softmax", dtype, scores, 2), Bound::copy, [=, &k] { k.softmax(x, y, {}); });
  bench.add_row(row_of("softmax_backward", dtype, scores, 3), Bound::copy,
                [=, &k] { k.softmax_backward(y, x, dx, {}); });
}

void add_embeddings(Bench& bench, DType dtype) {
  auto& k = bench.kernels().embedding();
  const View ids = bench.tensor(Shape{kTokens}, DType::i32);
  for (std::int64_t i = 0; i < kTokens; ++i)
    static_cast<std::int32_t*>(ids.data)[i] = static_cast<std::int32_t>(i * i * 31 % kVocabulary);
  const Shape shape{kTokens, kWidth};
  const View table = bench.tensor(Shape{kVocabulary, kWidth}, dtype);
  const View out = bench.tensor(shape, dtype);
  const View dtable = bench.tensor(Shape{kVocabulary, kWidth}, DType::f32);
  const View batch{out.data, Shape{kTokens / kPositions, kPositions, kWidth}, dtype};
  bench.add_row(row_of("embedding", dtype, shape, 2), Bound::copy,
                [=, &k] { k.embedding(ids, table, out, false, {}); });
  Row row = row_of("embedding_backward", dtype, shape, 1);
  row.bytes += 2 * shape.count() * 4;
  bench.add_row(row, Bound::copy, [=, &k] { k.embedding_backward(ids, out, dtable, {}); });
  RotaryArgs rotary;
  rotary.x = rotary.out = batch;
  rotary.table = bench.tensor(Shape{kPositions, 64}, DType::f32);
  bench.add_row(row_of("rotary", dtype, shape, 2), Bound::copy, [=, &k] { k.rotary(rotary, {}); });
  row = row_of("position_backward", dtype, shape, 1);
  row.bytes += 2 * kPositions * kWidth * 4;
  bench.add_row(row, Bound::copy, [=, &k] { k.position_backward(batch, dtable, {}); });
}

// Cross-entropy of logits that a small head has written to memory.
void add_cross_entropy(Bench& bench, DType dtype) {
  auto& k = bench.kernels().loss();
  const Shape shape{kTokens, 1024};
  const View logits = bench.tensor(shape, dtype), dlogits = bench.tensor(shape, dtype);
  const View targets = bench.tensor(Shape{kTokens}, DType::i32);
  const View loss = bench.tensor(Shape{1}, DType::f32);
  bench.add_row(row_of("cross_entropy", dtype, shape, 2), Bound::copy, [=, &k] {
    k.cross_entropy({.logits = logits, .targets = targets, .loss_sum = loss, .dlogits = dlogits},
                    {});
  });
}

// One rank's vocabulary shard of four: logits to exponentials, then to gradients. Both rows use one
// tensor, so their values are not a loss.
void add_shard_cross_entropy(Bench& bench, DType dtype) {
  auto& k = bench.kernels().loss();
  const Shape shape{kTokens, 2560};
  const View logits = bench.tensor(shape, DType::f32), dlogits = bench.tensor(shape, dtype);
  const View own = bench.tensor(Shape{kTokens, kShardStatistics}, DType::f32);
  const View all = bench.tensor(Shape{4, kTokens, kShardStatistics}, DType::f32);
  const View targets = bench.tensor(Shape{kTokens}, DType::i32);
  bench.kernels().elementwise().fill(all, 1, {});
  ShardCrossEntropyArgs args;
  args.exponentials = logits;
  args.statistics = all;
  args.targets = targets;
  args.classes = 4 * shape[1];
  args.token_loss = bench.tensor(Shape{kTokens}, DType::f32);
  args.dlogits = dlogits;
  if (dtype == DType::f32)
    bench.add_row(row_of("shard_statistics", dtype, shape, 2), Bound::copy,
                  [=, &k] { k.shard_statistics(logits, targets, 0, 0, own, {}); });
  Row row = row_of("shard_cross_entropy", dtype, shape, 1);
  row.bytes += shape.count() * 4;
  bench.add_row(row, Bound::copy, [=, &k] { k.shard_cross_entropy(args, {}); });
}

// The parameters of the embedding, a third of GPT-2 124M.
void add_optimizers(Bench& bench) {
  auto& k = bench.kernels().optimizer();
  static const StepState state{.step = 5, .learning_rate = 1e-4f};
  const Shape shape{kVocabulary * kWidth};
  AdamWArgs adamw;
  adamw.master = bench.tensor(shape, DType::f32);
  adamw.gradient = bench.tensor(shape, DType::f32);
  adamw.first_moment = bench.tensor(shape, DType::f32);
  adamw.second_moment = bench.tensor(shape, DType::f32);
  bench.kernels().elementwise().fill(adamw.second_moment, 0.1f, {});
  adamw.weight_decay = 0.01;
  adamw.state = &state;
  bench.add_row(row_of("adamw", DType::f32, shape, 7), Bound::copy,
                [=, &k] { k.adamw(adamw, {}); });
  AdamWArgs mixed = adamw;
  mixed.parameter = bench.tensor(shape, DType::bf16);
  Row row = row_of("adamw", DType::bf16, shape, 1);
  row.bytes += 28 * shape.count();
  bench.add_row(row, Bound::copy, [=, &k] { k.adamw(mixed, {}); });
  bench.add_row(row_of("lion", DType::f32, shape, 5), Bound::copy,
                [=, &k] { k.lion_many({&adamw, 1}, {}); });
  const View squares = bench.tensor(Shape{1, 2}, DType::f64);
  // Moments: 4 reads and 2 writes. Application: 3 reads and 1 write.
  bench.add_row(row_of("lamb", DType::f32, shape, 10), Bound::copy, [=, &k] {
    const LambArgs lamb{{&adamw, 1}, squares};
    k.lamb_moments(lamb, {});
    k.lamb_apply(lamb, {});
  });
  const MatrixPlace place{.count = shape.count(),
                          .rows = kVocabulary,
                          .columns = kWidth,
                          .part_rows = kVocabulary,
                          .part_columns = kWidth};
  const View sums = bench.tensor(Shape{adafactor_room(place)}, DType::f64);
  AdamWArgs factored = adamw;
  factored.first_moment = bench.tensor(Shape{kVocabulary}, DType::f32);
  factored.second_moment = bench.tensor(Shape{kWidth}, DType::f32);
  factored.epsilon = 1e-30;
  // The gradient is read three times, the master read and written.
  bench.add_row(row_of("adafactor", DType::f32, shape, 5), Bound::copy, [=, &k] {
    const AdafactorArgs args{{&factored, 1}, {&place, 1}, sums};
    k.adafactor_sums(args, {});
    k.adafactor_moments(args, {});
    k.adafactor_apply(args, {});
  });
  SgdArgs sgd;
  sgd.master = adamw.master;
  sgd.gradient = adamw.gradient;
  sgd.momentum_buffer = bench.tensor(shape, DType::f32);
  sgd.momentum = 0.9;
  sgd.state = &state;
  bench.add_row(row_of("sgd", DType::f32, shape, 5), Bound::copy, [=, &k] { k.sgd(sgd, {}); });
  const View sum = bench.tensor(Shape{1}, DType::f64);
  bench.add_row(row_of("sum_of_squares", DType::f32, shape, 1), Bound::read,
                [=, &k] { k.sum_of_squares(adamw.gradient, sum, false, {}); });
  bench.add_row(row_of("has_non_finite", DType::f32, shape, 1), Bound::read,
                [=, &k] { (void)k.has_non_finite(adamw.gradient, {}); });
}

// Uses one thread, whatever the program's setting: the ranks provide the parallelism.
void add_reductions(Bench& bench, DType dtype) {
  auto& k = bench.kernels().reduction();
  const Shape shape{4 << 20};
  const View a = bench.tensor(shape, dtype), b = bench.tensor(shape, dtype);
  const View c = bench.tensor(shape, dtype), d = bench.tensor(shape, dtype);
  bench.add_row(row_of("reduce_sum_2", dtype, shape, 3), Bound::copy, [=, &k] {
    const std::array<const void*, 2> sources{a.data, b.data};
    k.reduce(Reduce::sum, dtype, sources, c.data, shape[0], {});
  });
  if (size_of(dtype) == 2) {
    const View sums = bench.tensor(shape, DType::f32);
    bench.add_row(row_of("reduce_widened_2", dtype, shape, 4), Bound::copy, [=, &k] {
      const std::array<const void*, 2> sources{a.data, b.data};
      k.reduce_widened(Reduce::sum, dtype, sources, static_cast<float*>(sums.data), shape[0], {});
    });
  }
  bench.add_row(row_of("reduce_sum_4", dtype, shape, 5), Bound::copy, [=, &k] {
    const std::array<const void*, 4> sources{a.data, b.data, c.data, d.data};
    k.reduce(Reduce::sum, dtype, sources, d.data, shape[0], {});
  });
  bench.add_row(row_of("reduce_into_all_2", dtype, shape, 4), Bound::copy, [=, &k] {
    const std::array<const void*, 2> sources{a.data, b.data};
    const std::array<void*, 2> destinations{a.data, b.data};
    k.reduce_into_all(Reduce::min, dtype, sources, destinations, shape[0], false, {});
  });
  bench.add_row(row_of("reduce_scale", dtype, shape, 2), Bound::copy,
                [=, &k] { k.scale(dtype, d.data, 1.0, shape[0], {}); });
  bench.add_row(row_of("reduce_max_2", dtype, shape, 3), Bound::copy, [=, &k] {
    const std::array<const void*, 2> sources{a.data, b.data};
    k.reduce(Reduce::max, dtype, sources, c.data, shape[0], {});
  });
}

}  // namespace

void add_memory_bound_rows(Bench& bench) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    add_elementwise(bench, dtype);
    add_norms(bench, dtype);
    add_embeddings(bench, dtype);
    add_cross_entropy(bench, dtype);
    add_shard_cross_entropy(bench, dtype);
    add_reductions(bench, dtype);
  }
  add_fills_and_casts(bench);
  add_optimizers(bench);
}

}  // namespace shoal::bench
