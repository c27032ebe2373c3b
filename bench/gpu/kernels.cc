// Times each family of CUDA kernels at the sizes of a GPT-2 124M step. Bounds are this GPU's copy
// bandwidth and largest product, measured first. Prints one JSON line per row.
#include "shoal/kernels/kernels.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

constexpr std::int64_t kBatch = 32, kLength = 1024, kTokens = kBatch * kLength, kHeads = 12,
                       kWidth = 768, kVocabulary = 50257, kParameters = 124'439'808;

class Bench {
 public:
  Bench(std::string only, const std::string& cache)
      : only_(std::move(only)), cache_(cache), kernels_(make_kernels()) {}

  // New kernels, which read their environment variables on first use.
  std::unique_ptr<Kernels> make_kernels() const {
    return make_cuda_kernels(
        {.device = Device::cuda(0), .memory = nullptr, .cache_directory = cache_});
  }

  // Random normal values, or ids in [0, limit) for i32.
  Tensor tensor(const Shape& shape, DType dtype = DType::bf16, std::int64_t limit = 0) {
    Tensor made = Tensor::empty(shape, dtype, pool_, MemoryTag::data);
    if (dtype == DType::i32) {
      std::vector<std::int32_t> values(static_cast<std::size_t>(shape.count()));
      std::uint64_t state = 7;
      for (std::int32_t& value : values) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        value = static_cast<std::int32_t>(state >> 33) % static_cast<std::int32_t>(limit);
      }
      backend_.copy(made.view().data, values.data(), made.bytes(), stream());
      backend_.synchronize(stream());
      return made;
    }
    RandomSite site;
    site.seed = ++seed_;
    if (dtype == DType::f32) {
      kernels_->elementwise().fill_normal(made.view(), 0, 1, site, 0, {});
    } else {
      const Tensor wide = Tensor::empty(shape, DType::f32, pool_, MemoryTag::data);
      kernels_->elementwise().fill_normal(wide.view(), 0, 1, site, 0, {});
      kernels_->elementwise().cast(wide.const_view(), made.view(), {});
    }
    return made;
  }

  // Median of `rounds`; each round has enough calls to take milliseconds.
  double seconds_of(const std::function<void()>& call, int rounds = 9) {
    for (int i = 0; i < 3; ++i) call();
    const double once = elapsed(call, 1);
    const int calls = std::clamp(static_cast<int>(5e-3 / std::max(once, 1e-6)), 1, 500);
    std::vector<double> all;
    for (int i = 0; i < rounds; ++i) all.push_back(elapsed(call, calls) / calls);
    std::nth_element(all.begin(), all.begin() + rounds / 2, all.end());
    return all[static_cast<std::size_t>(rounds) / 2];
  }

  // `bytes`: each read or write counts once. `operations`: floating-point operations if they are
  // the bound.
  void row(const std::string& operation, const std::string& shape, double bytes, double operations,
           const std::function<void()>& call) {
    if (!only_.empty() && operation.find(only_) == std::string::npos) return;
    std::string problem;
    double seconds = 0;
    try {
      seconds = seconds_of(call);
    } catch (const Error& error) {
      problem = error.what();
    }
    print(operation, shape, bytes, operations, seconds, problem);
  }

  void measure_peaks() {
    const Tensor a = tensor({std::int64_t{1} << 29}), b = tensor({std::int64_t{1} << 29});
    const auto bytes = static_cast<double>(a.bytes());
    const double copy =
        seconds_of([&] { backend_.copy(b.view().data, a.const_view().data, a.bytes(), stream()); });
    bandwidth_ = 2 * bytes / copy;
    print("copy", "[1 GiB]", 2 * bytes, 0, copy, "");
    constexpr std::int64_t kSize = 8192;
    const Tensor x = tensor({kSize, kSize}), y = tensor({kSize, kSize}), z = tensor({kSize, kSize});
    MatmulArgs args;
    args.a = x.const_view();
    args.b = y.const_view();
    args.transpose_b = true;
    args.c = z.view();
    const double product = seconds_of([&] { kernels_->matmul().matmul(args, {}); });
    peak_ = 2.0 * kSize * kSize * kSize / product;
    print("matmul", "[8192, 8192, 8192]", 0, 2.0 * kSize * kSize * kSize, product, "");
  }

  Kernels& kernels() { return *kernels_; }
  Stream stream() const { return kernels_->stream(); }

 private:
  double elapsed(const std::function<void()>& call, int calls) {
    Event begin(Device::cuda(0), EventKind::timing), end(Device::cuda(0), EventKind::timing);
    begin.record(stream());
    for (int i = 0; i < calls; ++i) call();
    end.record(stream());
    end.synchronize();
    return end.elapsed_ms_since(begin) * 1e-3;
  }

  void print(const std::string& operation, const std::string& shape, double bytes,
             double operations, double seconds, const std::string& problem) const {
    if (!problem.empty()) {
      std::cout << fmt::format(R"({{"operation": "{}", "shape": "{}", "error": "{}"}})", operation,
                               shape, problem)
                << std::endl;
      return;
    }
    std::cout << fmt::format(
                     R"({{"operation": "{}", "shape": "{}", "dtype": "bf16", "us": {:.2f}, )"
                     R"("gb_per_s": {:.0f}, "bandwidth_fraction": {:.3f}, "tflops": {:.1f}, )"
                     R"("matmul_fraction": {:.3f}}})",
                     operation, shape, seconds * 1e6, bytes / seconds * 1e-9,
                     bandwidth_ > 0 ? bytes / seconds / bandwidth_ : 0,
                     operations / seconds * 1e-12, peak_ > 0 ? operations / seconds / peak_ : 0)
              << std::endl;
  }

  std::string only_, cache_;
  std::unique_ptr<MemoryResource> memory_ = make_device_memory(Device::cuda(0));
  PoolMemory pool_{*memory_};
  std::unique_ptr<Kernels> kernels_;
  DeviceBackend& backend_ = device_backend(DeviceType::cuda);
  std::uint64_t seed_ = 0;
  double bandwidth_ = 0, peak_ = 0;
};

// The operation fused into the end of a product.
enum class Ends { nothing, bias_gelu, gelu_gradient };

void product(Bench& bench, const std::string& name, std::int64_t m, std::int64_t n, std::int64_t k,
             bool transpose_a, bool transpose_b, Ends ends, DType output = DType::bf16) {
  const Tensor a = bench.tensor(transpose_a ? Shape{k, m} : Shape{m, k}),
               b = bench.tensor(transpose_b ? Shape{n, k} : Shape{k, n}),
               c = bench.tensor({m, n}, output), bias = bench.tensor({n}),
               before = ends != Ends::nothing ? bench.tensor({m, n}, output) : Tensor();
  MatmulArgs args;
  args.a = a.const_view();
  args.b = b.const_view();
  args.c = c.view();
  args.transpose_a = transpose_a;
  args.transpose_b = transpose_b;
  args.accumulate = output == DType::f32;
  if (ends != Ends::nothing) args.activation = Activation::gelu_tanh;
  if (ends == Ends::gelu_gradient) args.activation_input = before.const_view();
  if (ends == Ends::bias_gelu) {
    args.bias = bias.const_view();
    args.pre_activation = before.view();
  }
  const double bytes =
      static_cast<double>(a.bytes() + b.bytes() + c.bytes() * (ends == Ends::nothing ? 1 : 2));
  bench.row(name, fmt::format("[{}, {}, {}]", m, n, k), bytes,
            2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
            [&] { bench.kernels().matmul().matmul(args, {}); });
}

void products(Bench& bench) {
  product(bench, "matmul_qkv", kTokens, 3 * kWidth, kWidth, false, false, Ends::nothing);
  product(bench, "matmul_projection", kTokens, kWidth, kWidth, false, false, Ends::nothing);
  product(bench, "matmul_bias_gelu", kTokens, 4 * kWidth, kWidth, false, false, Ends::bias_gelu);
  product(bench, "matmul_dgelu", kTokens, 4 * kWidth, kWidth, false, true, Ends::gelu_gradient);
  product(bench, "matmul_dx", kTokens, kWidth, 4 * kWidth, false, true, Ends::nothing);
  product(bench, "matmul_dw", kWidth, 4 * kWidth, kTokens, true, false, Ends::nothing, DType::f32);
  const Tensor x = bench.tensor({kTokens, 4 * kWidth}),
               out = bench.tensor({4 * kWidth}, DType::f32);
  bench.row("sum_rows", "[32768, 3072]", static_cast<double>(x.bytes()), 0,
            [&] { bench.kernels().matmul().sum_rows(x.const_view(), out.view(), false, {}); });
}

// A layer's weight gradient with its bias gradient, which cuBLASLt computes within the product or a
// separate pass afterwards. The saving is `(pass)` minus `(product)`. An error or a notice shows
// where the fused form is unavailable.
void weight_and_bias_gradients(Bench& bench) {
  for (const char* who : {"pass", "product"}) {
    ::setenv("SHOAL_CUDA_BIAS_GRADIENT", who, 1);
    const auto kernels = bench.make_kernels();
    MatmulKernels& matmul = kernels->matmul();
    ::unsetenv("SHOAL_CUDA_BIAS_GRADIENT");
    const std::pair<std::int64_t, std::int64_t> layers[] = {
        {kWidth, 3 * kWidth}, {kWidth, kWidth}, {kWidth, 4 * kWidth}, {4 * kWidth, kWidth}};
    for (const auto& [in, out] : layers) {
      const Tensor x = bench.tensor({kTokens, in}), dy = bench.tensor({kTokens, out}),
                   dw = bench.tensor({in, out}, DType::f32), db = bench.tensor({out}, DType::f32);
      MatmulArgs args;
      args.a = x.const_view();
      args.b = dy.const_view();
      args.c = dw.view();
      args.transpose_a = true;
      args.bias_gradient = db.view();
      bench.row(
          fmt::format("matmul_dw_db ({})", who), fmt::format("[{}, {}, {}]", in, out, kTokens),
          static_cast<double>(x.bytes() + dy.bytes() + dw.bytes() + db.bytes()),
          2.0 * static_cast<double>(in) * static_cast<double>(out) * static_cast<double>(kTokens),
          [&] { matmul.matmul(args, bench.stream()); });
    }
    device_backend(DeviceType::cuda).synchronize(bench.stream());
  }
}

void attention(Bench& bench) {
  const Tensor qkv = bench.tensor({kTokens, 3 * kWidth}),
               dqkv = bench.tensor({kTokens, 3 * kWidth}), out = bench.tensor({kTokens, kWidth}),
               dout = bench.tensor({kTokens, kWidth}),
               sums = bench.tensor({kBatch, kHeads, kLength}, DType::f32);
  AttentionShape shape;
  shape.batch = kBatch;
  shape.heads = kHeads;
  shape.query_length = shape.key_length = kLength;
  shape.head_dim = kWidth / kHeads;
  shape.dtype = DType::bf16;
  shape.causal = true;
  shape.scale = 0.125f;
  const auto part = [](const Tensor& tensor, int which) {
    return static_cast<char*>(tensor.view().data) + static_cast<std::ptrdiff_t>(which) * kWidth * 2;
  };
  const std::int64_t row = 3 * kWidth, sample = kLength * row;
  const HeadsView q{part(qkv, 0), sample, row}, k{part(qkv, 1), sample, row},
      v{part(qkv, 2), sample, row};
  const MutableHeadsView o{out.view().data, kLength * kWidth, kWidth};
  // A causal mask leaves half of the scores.
  const double operations = 2.0 * kBatch * kHeads * kLength * kLength * 64;
  const auto bytes = static_cast<double>(qkv.bytes() + out.bytes());
  const auto rows = [&](const std::string& note, AttentionKernels& kernels) {
    bench.row("attention" + note, "[32, 12, 1024, 64]", bytes, operations,
              [&] { kernels.attention(shape, q, k, v, o, sums.view(), bench.stream()); });
    bench.row("attention_backward" + note, "[32, 12, 1024, 64]",
              2 * bytes + static_cast<double>(out.bytes()), 2.5 * operations, [&] {
                kernels.attention_backward(
                    shape, q, k, v, {o.data, o.batch_stride, o.row_stride}, sums.const_view(),
                    {dout.view().data, kLength * kWidth, kWidth}, {part(dqkv, 0), sample, row},
                    {part(dqkv, 1), sample, row}, {part(dqkv, 2), sample, row}, bench.stream());
              });
  };
  rows("", bench.kernels().attention());
  // Cost of the options that environment variables select; each is read when a kernel table is
  // made.
  const auto with = [&](const char* variable, const char* value, const std::string& note) {
    ::setenv(variable, value, 1);
    const auto kernels = make_cuda_kernels();
    kernels->attention();
    ::unsetenv(variable);
    rows(note, kernels->attention());
    device_backend(DeviceType::cuda).synchronize(bench.stream());
  };
  for (const char* mib : {"0", "64", "128", "256"})
    with("SHOAL_CUDA_ATTENTION_WORKSPACE", mib, fmt::format(" ({} MiB)", mib));
  with("SHOAL_CUDA_ATTENTION", "own", " (own)");
}

void norms(Bench& bench) {
  const Shape shape{kTokens, kWidth};
  const Tensor x = bench.tensor(shape), residual = bench.tensor(shape), sum = bench.tensor(shape),
               y = bench.tensor(shape), gamma = bench.tensor({kWidth}),
               beta = bench.tensor({kWidth}), mean = bench.tensor({kTokens}, DType::f32),
               rstd = bench.tensor({kTokens}, DType::f32),
               dgamma = bench.tensor({kWidth}, DType::f32),
               dbeta = bench.tensor({kWidth}, DType::f32);
  const auto bytes = static_cast<double>(x.bytes());
  NormKernels& norm = bench.kernels().norm();
  LayerNormArgs args;
  args.x = x.const_view();
  args.gamma = gamma.const_view();
  args.beta = beta.const_view();
  args.y = y.view();
  args.mean = mean.view();
  args.rstd = rstd.view();
  bench.row("layer_norm", "[32768, 768]", 2 * bytes, 0, [&] { norm.layer_norm(args, {}); });
  LayerNormArgs fused = args;
  fused.residual = residual.const_view();
  fused.sum = sum.view();
  bench.row("layer_norm_residual", "[32768, 768]", 4 * bytes, 0,
            [&] { norm.layer_norm(fused, {}); });
  fused.dropout.probability = 0.1f;
  fused.dropout.rows_per_sample = kLength;
  bench.row("layer_norm_dropout", "[32768, 768]", 4 * bytes, 0,
            [&] { norm.layer_norm(fused, {}); });
  LayerNormBackwardArgs back;
  back.dy = y.const_view();
  back.x = x.const_view();
  back.gamma = gamma.const_view();
  back.mean = mean.const_view();
  back.rstd = rstd.const_view();
  back.dx = sum.view();
  back.dx_residual = residual.const_view();
  bench.row("layer_norm_backward", "[32768, 768]", 4 * bytes, 0,
            [&] { norm.layer_norm_backward(back, {}); });
  LayerNormBackwardArgs whole = back;
  whole.dgamma = dgamma.view();
  whole.dbeta = dbeta.view();
  bench.row("layer_norm_backward_whole", "[32768, 768]", 4 * bytes, 0,
            [&] { norm.layer_norm_backward(whole, {}); });
  bench.row("layer_norm_weight_gradient", "[32768, 768]", 2 * bytes, 0, [&] {
    norm.layer_norm_weight_gradient(y.const_view(), x.const_view(), mean.const_view(),
                                    rstd.const_view(), dgamma.view(), dbeta.view(), false, {});
  });
}

void elementwise(Bench& bench) {
  const Shape shape{kTokens, 4 * kWidth};
  const Tensor x = bench.tensor(shape), y = bench.tensor(shape), z = bench.tensor(shape),
               bias = bench.tensor({4 * kWidth}), wide = bench.tensor(shape, DType::f32);
  const auto bytes = static_cast<double>(x.bytes());
  ElementwiseKernels& table = bench.kernels().elementwise();
  const std::string size = "[32768, 3072]";
  bench.row("add", size, 3 * bytes, 0,
            [&] { table.add(x.const_view(), y.const_view(), z.view(), {}); });
  bench.row("add_bias", size, 2 * bytes, 0,
            [&] { table.add_bias(x.const_view(), bias.const_view(), z.view(), {}); });
  bench.row("gelu", size, 2 * bytes, 0,
            [&] { table.activation(Activation::gelu_tanh, x.const_view(), z.view(), {}); });
  bench.row("gelu_backward", size, 3 * bytes, 0, [&] {
    table.activation_backward(Activation::gelu_tanh, x.const_view(), y.const_view(), z.view(), {});
  });
  bench.row("gelu_erf_backward", size, 3 * bytes, 0, [&] {
    table.activation_backward(Activation::gelu_erf, x.const_view(), y.const_view(), z.view(), {});
  });
  DropoutArgs dropout;
  dropout.probability = 0.1f;
  dropout.rows_per_sample = kLength;
  bench.row("dropout_add", size, 3 * bytes, 0,
            [&] { table.dropout_add(dropout, x.const_view(), y.const_view(), z.view(), {}); });
  bench.row("cast_to_f32", size, 3 * bytes, 0,
            [&] { table.cast(x.const_view(), wide.view(), {}); });
  bench.row("transpose", size, 2 * bytes, 0,
            [&] { table.transpose(x.const_view(), z.reshaped({4 * kWidth, kTokens}).view(), {}); });
}

void embedding(Bench& bench) {
  const Tensor ids = bench.tensor({kTokens}, DType::i32, kVocabulary),
               table = bench.tensor({kVocabulary, kWidth}), out = bench.tensor({kTokens, kWidth}),
               gradient = bench.tensor({kVocabulary, kWidth}, DType::f32),
               positions = bench.tensor({kLength, kWidth}, DType::f32);
  const auto bytes = static_cast<double>(out.bytes());
  EmbeddingKernels& kernels = bench.kernels().embedding();
  bench.row("embedding", "[32768, 768]", 2 * bytes, 0, [&] {
    kernels.embedding(ids.const_view(), table.const_view(), out.view(), false, {});
  });
  // Reads and writes rows of the f32 table: nearly every id names a different row.
  bench.row("embedding_backward", "[32768, 768]", 5 * bytes, 0, [&] {
    kernels.embedding_backward(ids.const_view(), out.const_view(), gradient.view(), {});
  });
  bench.row("position_backward", "[32, 1024, 768]", bytes, 0, [&] {
    kernels.position_backward(out.reshaped({kBatch, kLength, kWidth}).const_view(),
                              positions.view(), {});
  });
}

void loss(Bench& bench) {
  const Tensor x = bench.tensor({kTokens, kWidth}), weight = bench.tensor({kVocabulary, kWidth}),
               targets = bench.tensor({kTokens}, DType::i32, kVocabulary),
               sum = bench.tensor({1}, DType::f32), dx = bench.tensor({kTokens, kWidth}),
               dweight = bench.tensor({kVocabulary, kWidth}, DType::f32);
  LinearCrossEntropyArgs args;
  args.x = x.const_view();
  args.weight = weight.const_view();
  args.targets = targets.const_view();
  args.loss_sum = sum.view();
  args.dx = dx.view();
  args.dweight = dweight.view();
  args.loss_scale = 1.0f / static_cast<float>(kTokens);
  const double operations = 6.0 * kTokens * kWidth * static_cast<double>(kVocabulary);
  bench.row("linear_cross_entropy", "[32768, 768] x [50257, 768]", 0, operations,
            [&] { bench.kernels().loss().linear_cross_entropy(args, {}); });
}

// Tensors with the number and sizes of the model's.
void optimizer(Bench& bench) {
  std::vector<std::int64_t> counts{kVocabulary * kWidth, kLength * kWidth, kWidth, kWidth};
  for (int layer = 0; layer < 12; ++layer)
    for (const std::int64_t columns : {1, 1, 3 * 768, 3, 768, 1, 1, 1, 4 * 768, 4, 4 * 768, 1})
      counts.push_back(columns * kWidth);
  std::vector<Tensor> held;
  std::vector<AdamWArgs> all;
  std::vector<ConstView> gradients;
  const Tensor state = bench.tensor({sizeof(StepState) / sizeof(float)}, DType::f32);
  auto* step = static_cast<StepState*>(state.view().data);
  std::int64_t total = 0;
  for (const std::int64_t count : counts) {
    AdamWArgs args;
    const auto make = [&](DType dtype) {
      return held.emplace_back(bench.tensor({count}, dtype)).view();
    };
    args.master = make(DType::f32);
    args.first_moment = make(DType::f32);
    args.second_moment = make(DType::f32);
    bench.kernels().elementwise().fill(args.second_moment, 0.5f, {});
    args.gradient = make(DType::f32);
    args.parameter = make(DType::bf16);
    args.weight_decay = 0.1;
    args.state = step;
    gradients.push_back(args.gradient);
    all.push_back(args);
    total += count;
  }
  if (total != kParameters) throw_error(ErrorCode::internal, "{} parameters", total);
  const Tensor norm = bench.tensor({2}, DType::f32);
  const View squares{norm.view().data, {1}, DType::f64, Device::cuda(0)};
  OptimizerKernels& kernels = bench.kernels().optimizer();
  const StepState first;
  device_backend(DeviceType::cuda).copy(step, &first, sizeof(StepState), bench.stream());
  kernels.set_step(step, {.learning_rate = 1e-4f}, bench.stream());
  BeginUpdateArgs begin;
  begin.sum_of_squares = squares;
  begin.norm = squares;
  begin.state = step;
  const double each = static_cast<double>(total);
  bench.row("sum_of_squares_many", "[124439808]", 4 * each, 0,
            [&] { kernels.sum_of_squares_many(gradients, squares, {}); });
  // Reads 16 bytes and writes 12, plus 2 for the bf16 copy.
  bench.row("adamw_many", "[124439808]", 30 * each, 0, [&] {
    kernels.begin_update(begin, {});
    kernels.adamw_many(all, {});
  });
}

int run(const std::string& only, const std::string& cache) {
  Bench bench(only, cache);
  bench.measure_peaks();
  for (const auto& family : {products, weight_and_bias_gradients, attention, norms, elementwise,
                             embedding, loss, optimizer}) {
    try {
      family(bench);
    } catch (const Error& error) {
      std::cout << fmt::format(R"({{"operation": "", "error": "{}"}})", error.what()) << std::endl;
    }
  }
  return 0;
}

}  // namespace
}  // namespace shoal::kernels

int main(int argc, char** argv) {
  CLI::App app("Times the CUDA kernels at the sizes of GPT-2 124M; one JSON line each");
  std::string only, cache;
  app.add_option("name", only, "only those whose name has this in it");
  app.add_option("--cache", cache,
                 "directory in which choices of algorithms are kept; else none is timed");
  CLI11_PARSE(app, argc, argv);
  try {
    return shoal::kernels::run(only, cache);
  } catch (const std::exception& error) {
    std::cerr << "shoal_bench_gpu: " << error.what() << "\n";
    return 1;
  }
}
