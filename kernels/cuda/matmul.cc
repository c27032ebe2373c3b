// Matrix products through CudaGemm, and sums of rows.
#include "shoal/kernels/matmul.h"

#include "shoal/kernels/cuda/families.h"
#include "shoal/kernels/cuda/sum_rows.h"
#include "shoal/kernels/matmul_shape.h"

namespace shoal::kernels {
namespace {

class CudaMatmul final : public MatmulKernels {
 public:
  CudaMatmul(CudaResources& resources, CudaGemm& gemm) : resources_(resources), gemm_(gemm) {}

  void matmul(const MatmulArgs& args, Stream stream) override {
    gemm_.run(gemm_args(args, matmul_shape(args, false)), stream);
  }
  void batched_matmul(const MatmulArgs& args, Stream stream) override {
    gemm_.run(gemm_args(args, matmul_shape(args, true)), stream);
  }
  void sum_rows(ConstView x, View out, bool accumulate, Stream stream) override;

 private:
  static GemmArgs gemm_args(const MatmulArgs& args, const MatmulShape& shape);

  CudaResources& resources_;
  CudaGemm& gemm_;
};

GemmArgs CudaMatmul::gemm_args(const MatmulArgs& args, const MatmulShape& shape) {
  GemmArgs out;
  out.m = shape.m;
  out.n = shape.n;
  out.k = shape.k;
  out.groups = shape.groups;
  out.a = {args.a.data, args.transpose_a ? shape.m : shape.k, shape.m * shape.k};
  out.b = {args.b.data, args.transpose_b ? shape.k : shape.n, shape.k * shape.n};
  out.c = {args.c.data, shape.n, shape.m * shape.n};
  out.transpose_a = args.transpose_a;
  out.transpose_b = args.transpose_b;
  out.input = args.a.dtype;
  out.output = args.c.dtype;
  out.beta = args.accumulate ? 1.0f : 0.0f;
  out.bias = args.bias.data;
  out.bias_dtype = args.bias.dtype;
  out.activation = args.activation;
  out.aux_is_input = args.activation_input.defined();
  out.aux = {out.aux_is_input ? args.activation_input.data : args.pre_activation.data, shape.n, 0};
  out.bias_gradient = args.bias_gradient.defined() ? args.bias_gradient.as<float>() : nullptr;
  out.bias_gradient_of_a = args.bias_gradient_of_a;
  out.adds_bias_gradient = args.accumulate_bias_gradient;
  return out;
}

void CudaMatmul::sum_rows(ConstView x, View out, bool accumulate, Stream stream) {
  const std::int64_t rows = x.shape.rows(), columns = x.shape.columns();
  SHOAL_CHECK((x.dtype == DType::f32 || x.dtype == DType::bf16 || x.dtype == DType::f16) &&
                  out.dtype == DType::f32 && out.shape.count() == columns,
              "sum_rows: {} {} into {} {}", to_string(x.dtype), to_string(x.shape),
              to_string(out.dtype), to_string(out.shape));
  cuda::sum_rows(resources_, x.data, x.dtype, rows, columns, out.as<float>(), accumulate, stream,
                 resources_.begin(stream));
}

}  // namespace

std::unique_ptr<MatmulKernels> make_cuda_matmul(CudaResources& resources, CudaGemm& gemm) {
  return std::make_unique<CudaMatmul>(resources, gemm);
}

}  // namespace shoal::kernels
