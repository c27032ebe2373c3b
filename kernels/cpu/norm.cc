#include <algorithm>
#include <optional>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/norm_rows.h"
#include "shoal/kernels/cpu/scratch.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements worth a thread

std::int64_t rows_grain(std::int64_t columns) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, columns));
}

class CpuNorm final : public NormKernels {
 public:
  explicit CpuNorm(const CpuResources& resources)
      : threads_(resources.threads), scratch_(*resources.memory) {}

  void layer_norm(const LayerNormArgs& args, Stream) override {
    check::layer_norm(args);
    std::optional<DropoutPlan> plan;
    if (args.residual.defined() && args.dropout.probability > 0)
      plan.emplace(args.dropout, args.x.shape.columns());
    over_rows(args.x.shape, [&](std::int64_t first, std::int64_t rows) {
      layer_norm_rows(args, plan ? &*plan : nullptr, first, rows);
    });
  }

  void layer_norm_backward(const LayerNormBackwardArgs& args, Stream stream) override {
    if (!args.dx.defined() && !args.dx_branch.defined() && !args.dgamma.defined()) return;
    check::layer_norm_backward(args);
    if (args.dgamma.defined())
      layer_norm_weight_gradient(args.dy, args.x, args.mean, args.rstd, args.dgamma, args.dbeta,
                                 args.accumulate, stream);
    std::optional<DropoutPlan> plan;
    if (args.dx_branch.defined()) plan.emplace(args.dropout, args.x.shape.columns());
    over_rows(args.x.shape, [&](std::int64_t first, std::int64_t rows) {
      layer_norm_backward_rows(args, plan ? &*plan : nullptr, first, rows);
    });
  }

  // Blocks of rows are summed in order, then the blocks are added in order. Blocks depend only on
  // the shape, so the result does not depend on the number of threads.
  void layer_norm_weight_gradient(ConstView dy, ConstView x, ConstView mean, ConstView rstd,
                                  View dgamma, View dbeta, bool accumulate, Stream) override {
    check::layer_norm_weight_gradient(dy, x, mean, rstd, dgamma, dbeta);
    const std::int64_t rows = x.shape.rows(), columns = x.shape.columns();
    if (columns == 0) return;
    constexpr std::int64_t kLargestBlocks = 64;
    const std::int64_t block =
        std::max<std::int64_t>(32, (rows + kLargestBlocks - 1) / kLargestBlocks);
    const std::int64_t blocks = (rows + block - 1) / block;
    float* sums = scratch_.of<float>(std::max<std::int64_t>(1, blocks) * 2 * columns);
    parallel_for(threads_, blocks, std::max<std::int64_t>(1, kGrain / (block * columns)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t b = begin; b < end; ++b)
                     layer_norm_weight_rows(dy, x, static_cast<const float*>(mean.data),
                                            static_cast<const float*>(rstd.data), b * block,
                                            std::min(block, rows - b * block),
                                            sums + b * 2 * columns);
                 });
    parallel_for(threads_, columns, 4096, [&](std::int64_t begin, std::int64_t end) {
      fold(sums, blocks, 2 * columns, begin, end, static_cast<float*>(dgamma.data), accumulate);
      if (dbeta.defined())
        fold(sums + columns, blocks, 2 * columns, begin, end, static_cast<float*>(dbeta.data),
             accumulate);
    });
  }

  void softmax(ConstView x, View y, Stream) override {
    check::same("softmax", x, y);
    over_rows(x.shape,
              [&](std::int64_t first, std::int64_t rows) { softmax_rows(x, y, first, rows); });
  }

  void softmax_backward(ConstView y, ConstView dy, View dx, Stream) override {
    check::same("softmax_backward", y, dy);
    check::same("softmax_backward", y, dx);
    over_rows(y.shape, [&](std::int64_t first, std::int64_t rows) {
      softmax_backward_rows(y, dy, dx, first, rows);
    });
  }

 private:
  // out[begin, end) (+)= the sum of the blocks, accumulated in the first block.
  static void fold(float* sums, std::int64_t blocks, std::int64_t stride, std::int64_t begin,
                   std::int64_t end, float* out, bool accumulate) {
    for (std::int64_t b = 1; b < blocks; ++b)
      for (std::int64_t i = begin; i < end; ++i) sums[i] += sums[b * stride + i];
    for (std::int64_t i = begin; i < end; ++i) {
      const float sum = blocks > 0 ? sums[i] : 0.0f;
      out[i] = accumulate ? out[i] + sum : sum;
    }
  }

  template <class Body>
  void over_rows(const Shape& shape, const Body& body) const {
    parallel_for(threads_, shape.columns() ? shape.rows() : 0, rows_grain(shape.columns()),
                 [&](std::int64_t begin, std::int64_t end) { body(begin, end - begin); });
  }

  int threads_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<NormKernels> make_cpu_norm(const CpuResources& resources) {
  return std::make_unique<CpuNorm>(resources);
}

}  // namespace shoal::kernels
