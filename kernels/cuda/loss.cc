// Cross-entropy of a linear head in slices of rows. A slice's logits have the inputs' dtype, as in
// PyTorch under autocast: each 16-bit logit is rounded once, and everything after it is f32. The
// logits are overwritten by their gradients and used at once for dx and dweight, in three products
// with no repetition. Rows of logits are padded to a multiple of 64 elements, so that products and
// passes move whole vectors.
#include "shoal/kernels/loss.h"

#include <algorithm>
#include <utility>

#include "shoal/kernels/cuda/families.h"
#include "shoal/kernels/cuda/loss.cuh"
#include "shoal/kernels/cuda/rows.cuh"
#include "shoal/kernels/loss_checks.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

constexpr std::int64_t kSliceBytes = std::int64_t{1} << 30;
constexpr std::int64_t kPad = 64;
constexpr std::int64_t kVectorColumns = 8;  // products are fast for multiples of this

// Rows of a slice. If a few more slices divide the rows evenly, all get the same size, which needs
// only one product shape and one choice of algorithm.
std::int64_t slice_rows(std::int64_t rows, std::int64_t row_bytes) {
  const std::int64_t most =
      std::max<std::int64_t>(kSliceBytes / std::max<std::int64_t>(row_bytes, 1) / 8 * 8, 8);
  if (rows <= most) return rows;
  const std::int64_t fewest = (rows + most - 1) / most;
  for (std::int64_t slices = fewest; slices <= 2 * fewest; ++slices)
    if (rows % slices == 0 && rows / slices % 8 == 0) return rows / slices;
  return ((rows + fewest - 1) / fewest + 7) / 8 * 8;
}

// At least one byte, since scratch memory of 0 bytes is not allowed.
std::size_t bytes_of(std::int64_t count, std::size_t element) {
  return static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * element;
}

class CudaLoss final : public LossKernels {
 public:
  CudaLoss(CudaResources& resources, CudaGemm& gemm) : resources_(resources), gemm_(gemm) {
    check_cuda(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      resources.device().index),
               "reading the size of shared memory");
    shared_limit_ -= 1024;  // static shared memory
  }

  void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) override;
  void cross_entropy(const CrossEntropyArgs& args, Stream stream) override;
  void squared_error(const SquaredErrorArgs& args, Stream stream) override;
  void shard_statistics(View logits, ConstView targets, std::int64_t first_class, float soft_cap,
                        View statistics, Stream stream) override;
  void shard_cross_entropy(const ShardCrossEntropyArgs& args, Stream stream) override;

 private:
  // The head's weight [classes, C] and bias in the form that products need.
  struct Head {
    const void *weight = nullptr, *bias = nullptr;
    std::int64_t classes = 0;
    Buffer weight_room, bias_room;
  };
  Head padded_head(const LinearCrossEntropyArgs& args, std::int64_t leading, Stream stream);
  const void* padded(const ConstView& rows, std::int64_t row_bytes, std::int64_t count,
                     Buffer& scratch, Stream stream);
  // Targets in memory that kernels can read: a host view is copied into `scratch`.
  const std::int32_t* targets_of(const ConstView& targets, Buffer& scratch, Stream stream);
  void products(const LinearCrossEntropyArgs& args, const Head& head, const void* gradient,
                std::int64_t begin, std::int64_t rows, std::int64_t leading, Stream stream);
  void clear_gradients(const LinearCrossEntropyArgs& args, cudaStream_t native);

  CudaResources& resources_;
  CudaGemm& gemm_;
  int shared_limit_ = 0;
};

const std::int32_t* CudaLoss::targets_of(const ConstView& targets, Buffer& scratch, Stream stream) {
  const std::int64_t count = targets.shape.count();
  if (!targets.device.is_cpu() || count == 0) return static_cast<const std::int32_t*>(targets.data);
  const std::size_t bytes = bytes_of(count, sizeof(std::int32_t));
  scratch = resources_.scratch(bytes, stream);
  resources_.copy(scratch.data(), targets.data, bytes, resources_.begin(stream));
  return static_cast<const std::int32_t*>(scratch.data());
}

// Copies `rows` and appends zeros, up to `count` rows.
const void* CudaLoss::padded(const ConstView& rows, std::int64_t row_bytes, std::int64_t count,
                             Buffer& scratch, Stream stream) {
  const cudaStream_t native = resources_.begin(stream);
  const auto held = static_cast<std::size_t>(rows.shape[0] * row_bytes),
             all = static_cast<std::size_t>(count * row_bytes);
  scratch = resources_.scratch(std::max<std::size_t>(all, 1), stream);
  check_cuda(cudaMemcpyAsync(scratch.data(), rows.data, held, cudaMemcpyDeviceToDevice, native),
             "padding the head");
  check_cuda(cudaMemsetAsync(static_cast<std::byte*>(scratch.data()) + held, 0, all - held, native),
             "padding the head");
  return scratch.data();
}

// With an odd vocabulary (GPT-2's 50,257), cuBLASLt uses kernels without vector loads: 98 and 77
// TFLOP/s on an H200, where other sizes reach 760. A copy padded with rows of zeros costs 0.04 ms.
// The padding's logits are never read, and its gradients are 0.
CudaLoss::Head CudaLoss::padded_head(const LinearCrossEntropyArgs& args, std::int64_t leading,
                                     Stream stream) {
  Head head;
  head.weight = args.weight.data;
  head.bias = args.bias.data;
  head.classes = args.weight.shape[0];
  if (head.classes % kVectorColumns == 0) return head;
  const auto element = static_cast<std::int64_t>(size_of(args.x.dtype));
  head.weight =
      padded(args.weight, args.weight.shape[1] * element, leading, head.weight_room, stream);
  if (args.bias.defined()) {
    ConstView bias = args.bias;
    bias.shape = {head.classes};  // it may be [1, classes]
    head.bias = padded(bias, static_cast<std::int64_t>(size_of(bias.dtype)), leading,
                       head.bias_room, stream);
  }
  head.classes = leading;
  return head;
}

// Without rows, no product writes the gradients, so this function zeroes them.
void CudaLoss::clear_gradients(const LinearCrossEntropyArgs& args, cudaStream_t native) {
  if (args.accumulate_dweight) return;
  for (const View& view : {args.dweight, args.dbias})
    if (view.defined())
      check_cuda(
          cudaMemsetAsync(view.data, 0,
                          static_cast<std::size_t>(view.shape.count()) * sizeof(float), native),
          "linear_cross_entropy");
}

void CudaLoss::linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) {
  check_linear_cross_entropy(args);
  const cudaStream_t native = resources_.begin(stream);
  const std::int64_t rows = args.x.shape.rows(), columns = args.x.shape.columns(),
                     vocabulary = args.weight.shape[0],
                     leading = (vocabulary + kPad - 1) / kPad * kPad;
  const std::size_t element = size_of(args.x.dtype);
  const bool backward = args.dx.defined() || args.dweight.defined() || args.dbias.defined();
  Buffer target_room, loss_room, correct_room;
  const std::int32_t* targets = targets_of(args.targets, target_room, stream);
  auto* token_loss = static_cast<float*>(args.token_loss.data);
  if (!args.token_loss.defined()) {
    loss_room = resources_.scratch(bytes_of(rows, sizeof(float)), stream);
    token_loss = static_cast<float*>(loss_room.data());
  }
  std::int32_t* correct = nullptr;
  if (args.correct.defined()) {
    correct_room = resources_.scratch(bytes_of(rows, sizeof(std::int32_t)), stream);
    correct = static_cast<std::int32_t*>(correct_room.data());
  }
  if (rows == 0) clear_gradients(args, native);
  const std::int64_t slice =
      rows > 0 ? slice_rows(rows, leading * static_cast<std::int64_t>(element)) : 0;
  const Buffer logits_room = resources_.scratch(bytes_of(slice * leading, element), stream);
  const Head head = rows > 0 ? padded_head(args, leading, stream) : Head{};
  for (std::int64_t begin = 0; begin < rows; begin += slice) {
    const std::int64_t some = std::min(slice, rows - begin);
    GemmArgs product;
    product.m = some;
    product.n = head.classes;
    product.k = columns;
    product.a = {static_cast<const std::byte*>(args.x.data) +
                     static_cast<std::size_t>(begin * columns) * element,
                 columns};
    product.b = {head.weight, columns};
    product.c = {logits_room.data(), leading};
    product.transpose_b = true;
    product.input = product.output = args.x.dtype;
    product.bias = head.bias;
    product.bias_dtype = args.bias.dtype;
    gemm_.run(product, stream);

    CrossEntropyLaunch launch{};
    launch.type = launch.gradient_type = args.x.dtype;
    launch.rows = some;
    launch.classes = vocabulary;
    launch.logits = logits_room.data();
    launch.gradient = backward ? logits_room.data() : nullptr;
    launch.leading = leading;
    launch.targets = targets + begin;
    launch.first_row = begin;
    launch.fault = resources_.fault();
    launch.soft_cap = args.soft_cap;
    launch.label_smoothing = args.label_smoothing;
    launch.scale = args.loss_scale;
    launch.state = args.state;
    launch.token_loss = token_loss + begin;
    launch.correct = correct ? correct + begin : nullptr;
    check_cuda(launch_cross_entropy(launch, shared_limit_, native), "linear_cross_entropy");
    if (backward) products(args, head, logits_room.data(), begin, some, leading, stream);
  }
  check_cuda(launch_loss_total(token_loss, correct, rows, static_cast<float*>(args.loss_sum.data),
                               static_cast<std::int32_t*>(args.correct.data), native),
             "linear_cross_entropy");
}

// Gradients of the head's inputs from a slice's logit gradient [rows, leading].
void CudaLoss::products(const LinearCrossEntropyArgs& args, const Head& head, const void* gradient,
                        std::int64_t begin, std::int64_t rows, std::int64_t leading,
                        Stream stream) {
  const std::int64_t columns = args.x.shape.columns(), vocabulary = args.weight.shape[0];
  const std::size_t offset = static_cast<std::size_t>(begin * columns) * size_of(args.x.dtype);
  const bool accumulate = args.accumulate_dweight || begin > 0;
  GemmArgs product;
  product.input = args.x.dtype;
  product.a = {gradient, leading};
  if (args.dx.defined()) {
    product.m = rows;
    product.n = columns;
    product.k = head.classes;
    product.b = {head.weight, columns};
    product.c = {static_cast<std::byte*>(args.dx.data) + offset, columns};
    product.output = args.x.dtype;
    gemm_.run(product, stream);
  }
  if (args.dweight.defined()) {
    product.n = columns;
    product.k = rows;
    product.transpose_a = true;
    product.b = {static_cast<const std::byte*>(args.x.data) + offset, columns};
    product.output = DType::f32;
    product.beta = accumulate ? 1.0f : 0.0f;
    // First the classes that form whole vectors, then the remaining few.
    const std::int64_t whole = vocabulary / kVectorColumns * kVectorColumns;
    for (const auto& [first, count] :
         {std::pair{std::int64_t{0}, whole}, {whole, vocabulary - whole}}) {
      if (count == 0) continue;
      product.m = count;
      product.a.data = static_cast<const std::byte*>(gradient) +
                       static_cast<std::size_t>(first) * size_of(args.x.dtype);
      product.c = {static_cast<float*>(args.dweight.data) + first * columns, columns};
      gemm_.run(product, stream);
    }
  }
  if (args.dbias.defined() && vocabulary > 0) {
    const Buffer partial =
        resources_.scratch(bytes_of(column_parts(rows) * vocabulary, sizeof(float)), stream);
    check_cuda(launch_column_sums(args.x.dtype, gradient, rows, vocabulary, leading,
                                  static_cast<float*>(partial.data()),
                                  static_cast<float*>(args.dbias.data), accumulate,
                                  resources_.begin(stream)),
               "linear_cross_entropy");
  }
}

void CudaLoss::cross_entropy(const CrossEntropyArgs& args, Stream stream) {
  const ConstView& logits = args.logits;
  const View& dlogits = args.dlogits;
  check_cross_entropy(logits, args.targets, args.label_smoothing, args.loss_sum, dlogits);
  const cudaStream_t native = resources_.begin(stream);
  Buffer target_room;
  CrossEntropyLaunch launch{};
  launch.rows = logits.shape.columns() > 0 ? logits.shape.rows() : 0;
  const Buffer loss_room = resources_.scratch(bytes_of(launch.rows, sizeof(float)), stream);
  launch.type = logits.dtype;
  launch.gradient_type = dlogits.dtype;
  launch.classes = launch.leading = logits.shape.columns();
  launch.logits = logits.data;
  launch.gradient = dlogits.data;
  launch.targets = targets_of(args.targets, target_room, stream);
  launch.fault = resources_.fault();
  launch.label_smoothing = args.label_smoothing;
  launch.scale = args.loss_scale;
  launch.state = args.state;
  launch.token_loss = static_cast<float*>(loss_room.data());
  if (launch.rows > 0)
    check_cuda(launch_cross_entropy(launch, shared_limit_, native), "cross_entropy");
  check_cuda(launch_loss_total(launch.token_loss, nullptr, launch.rows,
                               static_cast<float*>(args.loss_sum.data), nullptr, native),
             "cross_entropy");
}

void CudaLoss::squared_error(const SquaredErrorArgs& args, Stream stream) {
  check_squared_error(args.x, args.targets, args.loss_sum, args.dx);
  check_cuda(launch_squared_error(args.x.dtype, args.x.shape.count(), args.x.data,
                                  static_cast<const float*>(args.targets.data), args.loss_scale,
                                  args.state, static_cast<float*>(args.loss_sum.data), args.dx.data,
                                  resources_.begin(stream)),
             "squared_error");
}

void CudaLoss::shard_statistics(View logits, ConstView targets, std::int64_t first_class,
                                float soft_cap, View statistics, Stream stream) {
  check_shard_statistics(logits, targets, first_class, soft_cap, statistics);
  const cudaStream_t native = resources_.begin(stream);
  if (targets.shape.count() == 0) return;
  Buffer target_room;
  check_cuda(
      launch_shard_statistics(static_cast<float*>(logits.data), targets.shape.count(),
                              logits.shape[1], targets_of(targets, target_room, stream),
                              first_class, soft_cap, static_cast<float*>(statistics.data), native),
      "shard_statistics");
}

void CudaLoss::shard_cross_entropy(const ShardCrossEntropyArgs& args, Stream stream) {
  check_shard_cross_entropy(args);
  const cudaStream_t native = resources_.begin(stream);
  Buffer target_room;
  ShardLossLaunch launch{};
  launch.exponentials = static_cast<const float*>(args.exponentials.data);
  launch.statistics = static_cast<const float*>(args.statistics.data);
  launch.rows = args.targets.shape.count();
  if (launch.rows == 0) return;
  launch.columns = args.exponentials.shape[1];
  launch.ranks = args.statistics.shape[0];
  launch.rank = args.rank;
  launch.targets = targets_of(args.targets, target_room, stream);
  launch.first_class = args.first_class;
  launch.classes = args.classes;
  launch.fault = resources_.fault();
  launch.soft_cap = args.soft_cap;
  launch.label_smoothing = args.label_smoothing;
  launch.scale = args.loss_scale;
  launch.state = args.state;
  launch.token_loss = static_cast<float*>(args.token_loss.data);
  launch.gradient = launch.columns > 0 ? args.dlogits.data : nullptr;
  launch.gradient_type = args.dlogits.dtype;
  check_cuda(launch_shard_cross_entropy(launch, native), "shard_cross_entropy");
}

}  // namespace

std::unique_ptr<LossKernels> make_cuda_loss(CudaResources& resources, CudaGemm& gemm) {
  return std::make_unique<CudaLoss>(resources, gemm);
}

}  // namespace shoal::kernels
