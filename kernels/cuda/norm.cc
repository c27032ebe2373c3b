// NormKernels on the GPU.
#include "shoal/kernels/norm.h"

#include <algorithm>
#include <limits>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cuda/dropout.h"
#include "shoal/kernels/cuda/families.h"
#include "shoal/kernels/cuda/norm.cuh"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

// True if there is work to do; kernels count columns in 32 bits.
bool has_rows(const char* operation, const Shape& shape) {
  SHOAL_CHECK(shape.columns() <= std::numeric_limits<std::int32_t>::max() / 2,
              "{}: {} columns are too many", operation, shape.columns());
  return shape.count() > 0;
}

class CudaNorm final : public NormKernels {
 public:
  explicit CudaNorm(CudaResources& resources) : resources_(resources) {}

  void layer_norm(const LayerNormArgs& args, Stream stream) override {
    check::layer_norm(args);
    const cudaStream_t native = resources_.begin(stream);
    if (!has_rows("layer_norm", args.x.shape)) return;
    LayerNormLaunch launch{};
    launch.type = args.x.dtype;
    launch.weight_type = args.gamma.dtype;
    launch.rows = args.x.shape.rows();
    launch.columns = args.x.shape.columns();
    launch.x = args.x.data;
    launch.gamma = args.gamma.data;
    launch.beta = args.beta.data;
    launch.y = args.y.data;
    launch.mean = static_cast<float*>(args.mean.data);
    launch.rstd = static_cast<float*>(args.rstd.data);
    launch.epsilon = args.epsilon;
    launch.gamma_offset = args.gamma_offset;
    if (args.residual.defined()) {
      launch.residual = args.residual.data;
      launch.sum = args.sum.data;
      launch.dropout = make_row_dropout(args.dropout, launch.columns);
    }
    check_cuda(launch_layer_norm(launch, native), "layer_norm");
  }

  void layer_norm_backward(const LayerNormBackwardArgs& args, Stream stream) override {
    if (!args.dx.defined() && !args.dx_branch.defined() && !args.dgamma.defined()) return;
    check::layer_norm_backward(args);
    const cudaStream_t native = resources_.begin(stream);
    const auto sums_apart = [&] {
      layer_norm_weight_gradient(args.dy, args.x, args.mean, args.rstd, args.dgamma, args.dbeta,
                                 args.accumulate, stream);
    };
    if (!has_rows("layer_norm_backward", args.x.shape)) {
      if (args.dgamma.defined()) sums_apart();
      return;
    }
    LayerNormBackwardLaunch launch{};
    launch.type = args.x.dtype;
    launch.weight_type = args.gamma.dtype;
    launch.rows = args.x.shape.rows();
    launch.columns = args.x.shape.columns();
    launch.dy = args.dy.data;
    launch.x = args.x.data;
    launch.gamma = args.gamma.data;
    launch.gamma_offset = args.gamma_offset;
    launch.residual = args.dx_residual.data;
    launch.mean = static_cast<const float*>(args.mean.data);
    launch.rstd = static_cast<const float*>(args.rstd.data);
    launch.dx = args.dx.data;
    if (args.dx_branch.defined()) {
      launch.branch = args.dx_branch.data;
      launch.dropout = make_row_dropout(args.dropout, launch.columns);
    }
    Buffer partial;
    if (args.dgamma.defined()) {
      launch.parts = layer_norm_backward_parts(launch);
      if (launch.parts == 0) sums_apart();
    }
    if (launch.parts > 0) {
      partial = resources_.scratch(
          static_cast<std::size_t>(launch.parts * 2 * launch.columns) * sizeof(float), stream);
      launch.partial = static_cast<float*>(partial.data());
    }
    check_cuda(launch_layer_norm_backward(launch, native), "layer_norm_backward");
    if (launch.parts == 0) return;
    LayerNormWeightLaunch total{};
    total.columns = launch.columns;
    total.parts = launch.parts;
    total.partial = launch.partial;
    total.dgamma = static_cast<float*>(args.dgamma.data);
    total.dbeta = static_cast<float*>(args.dbeta.data);
    total.accumulate = args.accumulate;
    check_cuda(launch_layer_norm_weight_total(total, native), "layer_norm_backward");
  }

  void layer_norm_weight_gradient(ConstView dy, ConstView x, ConstView mean, ConstView rstd,
                                  View dgamma, View dbeta, bool accumulate,
                                  Stream stream) override {
    check::layer_norm_weight_gradient(dy, x, mean, rstd, dgamma, dbeta);
    const cudaStream_t native = resources_.begin(stream);
    LayerNormWeightLaunch launch{};
    launch.type = x.dtype;
    launch.rows = x.shape.rows();
    launch.columns = x.shape.columns();
    if (launch.columns == 0) return;
    launch.parts = layer_norm_weight_parts(launch.rows, launch.columns);
    const Buffer partial = resources_.scratch(
        static_cast<std::size_t>(std::max<std::int64_t>(launch.parts, 1) * 2 * launch.columns) *
            sizeof(float),
        stream);
    launch.dy = dy.data;
    launch.x = x.data;
    launch.mean = static_cast<const float*>(mean.data);
    launch.rstd = static_cast<const float*>(rstd.data);
    launch.partial = static_cast<float*>(partial.data());
    launch.dgamma = static_cast<float*>(dgamma.data);
    launch.dbeta = static_cast<float*>(dbeta.data);
    launch.accumulate = accumulate;
    check_cuda(launch_layer_norm_weight(launch, native), "layer_norm_weight_gradient");
  }

  void softmax(ConstView x, View y, Stream stream) override {
    check::same("softmax", x, y);
    const cudaStream_t native = resources_.begin(stream);
    if (!has_rows("softmax", x.shape)) return;
    check_cuda(launch_softmax(x.dtype, x.shape.rows(), x.shape.columns(), x.data, y.data, native),
               "softmax");
  }

  void softmax_backward(ConstView y, ConstView dy, View dx, Stream stream) override {
    check::same("softmax_backward", y, dy);
    check::same("softmax_backward", y, dx);
    const cudaStream_t native = resources_.begin(stream);
    if (!has_rows("softmax_backward", y.shape)) return;
    check_cuda(launch_softmax_backward(y.dtype, y.shape.rows(), y.shape.columns(), y.data, dy.data,
                                       dx.data, native),
               "softmax_backward");
  }

 private:
  CudaResources& resources_;
};

}  // namespace

std::unique_ptr<NormKernels> make_cuda_norm(CudaResources& resources) {
  return std::make_unique<CudaNorm>(resources);
}

}  // namespace shoal::kernels
