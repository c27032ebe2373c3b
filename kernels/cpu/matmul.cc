// Matrix products through oneDNN, plus the cases it lacks: f16, bf16 without AVX-512, K = 0, odd K.
#include "shoal/kernels/matmul.h"

#include <algorithm>
#include <cstring>

#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/onednn.h"
#include "shoal/kernels/cpu/scratch.h"
#include "shoal/kernels/cpu/sum_rows.h"
#include "shoal/kernels/matmul_shape.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {
namespace {

constexpr std::int64_t kRowsPerSum = 256;

// oneDNN 2.6.3's bf16 AMX kernels die with SIGILL for some K ≡ 31 (mod 32); no even K is known to
// be affected. Odd K is padded on every machine, so that every machine tests the padding.
std::int64_t padded_k(const GemmProblem& p) {
  return p.input == DType::bf16 && p.k % 2 != 0 ? (p.k + 31) / 32 * 32 : p.k;
}

class CpuMatmul final : public MatmulKernels {
 public:
  CpuMatmul(const CpuResources& resources, ElementwiseKernels& elementwise)
      : resources_(resources),
        elementwise_(elementwise),
        gemm_(resources),
        scratch_a_(*resources.memory),
        scratch_b_(*resources.memory),
        scratch_c_(*resources.memory),
        scratch_bias_(*resources.memory),
        sums_(*resources.memory) {}

  void matmul(const MatmulArgs& args, Stream stream) override {
    run(args, matmul_shape(args, false), stream);
    if (args.bias_gradient.defined())
      sum_rows(bias_gradient_operand(args), args.bias_gradient, args.accumulate_bias_gradient,
               stream);
  }
  void batched_matmul(const MatmulArgs& args, Stream stream) override {
    run(args, matmul_shape(args, true), stream);
  }
  void sum_rows(ConstView x, View out, bool accumulate, Stream stream) override;

 private:
  void run(MatmulArgs args, const MatmulShape& shape, Stream stream);
  void run_widened(const MatmulArgs& args, const MatmulShape& shape, Stream stream);
  void multiply(GemmProblem problem, const void* a, const void* b, const void* bias, void* c);
  void pass_through_activation(const MatmulArgs& args, const View& c, Stream stream);
  void empty_product(const MatmulArgs& args, const MatmulShape& shape, Stream stream);
  const void* pad(Scratch& scratch, const void* from, std::int64_t groups, std::int64_t rows,
                  std::int64_t columns, std::int64_t new_rows, std::int64_t new_columns);

  CpuResources resources_;
  ElementwiseKernels& elementwise_;
  OneDnnGemm gemm_;
  Scratch scratch_a_, scratch_b_, scratch_c_, scratch_bias_, sums_;
};

void CpuMatmul::run(MatmulArgs args, const MatmulShape& shape, Stream stream) {
  if (shape.groups == 0 || shape.m == 0 || shape.n == 0) return;
  if (shape.k == 0) return empty_product(args, shape, stream);
  if (args.a.dtype == DType::f16 || (args.a.dtype == DType::bf16 && !gemm_.multiplies_bf16()))
    return run_widened(args, shape, stream);
  const bool keep = args.pre_activation.defined();
  GemmProblem problem;
  problem.groups = shape.groups;
  problem.m = shape.m;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.input = args.a.dtype;
  problem.output = args.c.dtype;
  problem.transpose_a = args.transpose_a;
  problem.transpose_b = args.transpose_b;
  problem.accumulate = args.accumulate;
  problem.has_bias = args.bias.defined();
  if (problem.has_bias) problem.bias = args.bias.dtype;
  const bool through = args.activation_input.defined();
  problem.activation = keep || through ? Activation::none : args.activation;
  multiply(problem, args.a.data, args.b.data, args.bias.data,
           keep ? args.pre_activation.data : args.c.data);
  if (keep) elementwise_.activation(args.activation, args.pre_activation, args.c, stream);
  if (through) pass_through_activation(args, args.c, stream);
}

// c *= activation'(activation_input)
void CpuMatmul::pass_through_activation(const MatmulArgs& args, const View& c, Stream stream) {
  ConstView input = args.activation_input;
  input.shape = c.shape;
  elementwise_.activation_backward(args.activation, input, c, c, stream);
}

// Converts 16-bit inputs to f32, multiplies in f32 and rounds once at the end.
void CpuMatmul::run_widened(const MatmulArgs& args, const MatmulShape& shape, Stream stream) {
  const auto widened = [&](Scratch& scratch, const ConstView& from) {
    View to{scratch.of<float>(from.shape.count()), from.shape, DType::f32, from.device};
    elementwise_.cast(from, to, stream);
    return to;
  };
  MatmulArgs wide = args;
  wide.a = widened(scratch_a_, args.a);
  wide.b = widened(scratch_b_, args.b);
  if (args.bias.defined() && args.bias.dtype != DType::f32)
    wide.bias = widened(scratch_bias_, args.bias);
  if (args.c.dtype == DType::f32) return run(wide, shape, stream);
  wide.pre_activation = {};
  wide.activation_input = {};
  wide.activation = Activation::none;
  wide.c =
      View{scratch_c_.of<float>(args.c.shape.count()), args.c.shape, DType::f32, args.c.device};
  if (args.accumulate) elementwise_.cast(args.c, wide.c, stream);
  run(wide, shape, stream);
  if (args.pre_activation.defined()) elementwise_.cast(wide.c, args.pre_activation, stream);
  const bool through = args.activation_input.defined();
  if (args.activation != Activation::none && !through)
    elementwise_.activation(args.activation, wide.c, wide.c, stream);
  elementwise_.cast(wide.c, args.c, stream);
  if (through) pass_through_activation(args, args.c, stream);
}

void CpuMatmul::multiply(GemmProblem problem, const void* a, const void* b, const void* bias,
                         void* c) {
  if (const std::int64_t k = padded_k(problem); k != problem.k) {
    const auto [groups, m, n] = std::tuple(problem.groups, problem.m, problem.n);
    a = problem.transpose_a ? pad(scratch_a_, a, groups, problem.k, m, k, m)
                            : pad(scratch_a_, a, groups, m, problem.k, m, k);
    b = problem.transpose_b ? pad(scratch_b_, b, groups, n, problem.k, n, k)
                            : pad(scratch_b_, b, groups, problem.k, n, k, n);
    problem.k = k;
  }
  gemm_.run(problem, a, b, bias, c);
}

// Copies matrices of 16-bit elements into larger ones, surrounded by zeros.
const void* CpuMatmul::pad(Scratch& scratch, const void* from, std::int64_t groups,
                           std::int64_t rows, std::int64_t columns, std::int64_t new_rows,
                           std::int64_t new_columns) {
  const auto* source = static_cast<const std::uint16_t*>(from);
  auto* destination = scratch.of<std::uint16_t>(groups * new_rows * new_columns);
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count) * 2; };
  parallel_for(resources_.threads, groups * new_rows, 64,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t group = i / new_rows, row = i % new_rows;
                   std::uint16_t* to = destination + i * new_columns;
                   const std::int64_t have = row < rows ? columns : 0;
                   if (have > 0)
                     std::memcpy(to, source + (group * rows + row) * columns, bytes(have));
                   std::memset(to + have, 0, bytes(new_columns - have));
                 }
               });
  return destination;
}

// K = 0: the sum is empty, so the result is the bias.
void CpuMatmul::empty_product(const MatmulArgs& args, const MatmulShape& shape, Stream stream) {
  if (args.accumulate) return;
  const auto flat = [&](const View& view, Shape as) {
    return View{view.data, as, view.dtype, view.device};
  };
  const Shape matrix{shape.groups * shape.m, shape.n};
  const View sum = flat(args.pre_activation.defined() ? args.pre_activation : args.c, matrix);
  elementwise_.fill(sum, 0, stream);
  if (args.bias.defined()) elementwise_.add_bias(sum, args.bias, sum, stream);
  if (args.activation_input.defined()) return;
  if (args.activation == Activation::none && !args.pre_activation.defined()) return;
  elementwise_.activation(args.activation, sum, flat(args.c, matrix), stream);
}

// Chunks of rows are summed separately and then in order, so that neither accuracy nor the result
// depends on the number of threads.
void CpuMatmul::sum_rows(ConstView x, View out, bool accumulate, Stream) {
  const std::int64_t rows = x.shape.rows(), columns = x.shape.columns();
  SHOAL_CHECK((x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::f16) &&
                  out.dtype == DType::f32 && out.shape.count() == columns,
              "sum_rows: {} {} into {} {}", to_string(x.dtype), to_string(x.shape),
              to_string(out.dtype), to_string(out.shape));
  if (columns == 0) return;
  float* total = out.as<float>();
  if (!accumulate) std::fill_n(total, columns, 0.0f);
  const std::int64_t chunks = (rows + kRowsPerSum - 1) / kRowsPerSum;
  float* sums = sums_.of<float>(std::max<std::int64_t>(chunks * columns, 1));
  parallel_for(resources_.threads, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk)
      sum_of_rows(static_cast<const char*>(x.data) +
                      static_cast<std::size_t>(chunk * kRowsPerSum * columns) * size_of(x.dtype),
                  x.dtype, std::min(kRowsPerSum, rows - chunk * kRowsPerSum), columns, columns,
                  sums + chunk * columns);
  });
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk)
    for (std::int64_t j = 0; j < columns; ++j) total[j] += sums[chunk * columns + j];
}

}  // namespace

std::unique_ptr<MatmulKernels> make_cpu_matmul(const CpuResources& resources,
                                               ElementwiseKernels& elementwise) {
  return std::make_unique<CpuMatmul>(resources, elementwise);
}

}  // namespace shoal::kernels
