#include "shoal/kernels/matmul.h"

#include "shoal/kernels/matmul_shape.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/activation.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

using reference::load;
using reference::store;

void product(const MatmulArgs& args, const MatmulShape& shape) {
  const auto [groups, m, n, k] = shape;
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = args.bias.defined() ? load(args.bias, j) : 0;
        for (std::int64_t p = 0; p < k; ++p)
          sum += load(args.a, g * m * k + (args.transpose_a ? p * m + i : i * k + p)) *
                 load(args.b, g * k * n + (args.transpose_b ? j * k + p : p * n + j));
        const std::int64_t at = (g * m + i) * n + j;
        if (args.accumulate) sum += load(args.c, at);
        if (args.pre_activation.defined()) store(args.pre_activation, at, sum);
        store(args.c, at,
              args.activation_input.defined()
                  ? sum * reference::activation_derivative(args.activation,
                                                           load(args.activation_input, at))
                  : reference::activation(args.activation, sum));
      }
}

class ReferenceMatmul final : public MatmulKernels {
 public:
  void matmul(const MatmulArgs& args, Stream stream) override {
    product(args, matmul_shape(args, false));
    if (args.bias_gradient.defined())
      sum_rows(bias_gradient_operand(args), args.bias_gradient, args.accumulate_bias_gradient,
               stream);
  }
  void batched_matmul(const MatmulArgs& args, Stream) override {
    product(args, matmul_shape(args, true));
  }
  void sum_rows(ConstView x, View out, bool accumulate, Stream) override {
    const std::int64_t rows = x.shape.rows(), columns = x.shape.columns();
    SHOAL_CHECK(out.dtype == DType::f32 && out.shape.count() == columns, "sum_rows: {} into {} {}",
                to_string(x.shape), to_string(out.dtype), to_string(out.shape));
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = accumulate ? load(out, j) : 0;
      for (std::int64_t i = 0; i < rows; ++i) sum += load(x, i * columns + j);
      store(out, j, sum);
    }
  }
};

}  // namespace

std::unique_ptr<MatmulKernels> make_reference_matmul() {
  return std::make_unique<ReferenceMatmul>();
}

}  // namespace shoal::kernels
