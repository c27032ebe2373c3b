// Cross-entropy of a linear head in slices of rows. A slice's logits are computed in f32,
// overwritten by their gradients (with bf16 inputs: in the first half of each f32 row) and used at
// once for dx and dweight. This takes three products and repeats none.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "shoal/kernels/cpu/cross_entropy_row.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/onednn.h"
#include "shoal/kernels/cpu/scratch.h"
#include "shoal/kernels/cpu/sum_rows.h"
#include "shoal/kernels/loss_checks.h"
#include "shoal/kernels/loss_scale.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {
namespace {

constexpr std::int64_t kSliceBytes = std::int64_t{128} << 20;
// Rows and leading dimensions are multiples of kAlign. K of every bf16 product is then even (hazard
// in matmul.cc) and rows are aligned to cache lines, although vocabularies are often odd.
constexpr std::int64_t kAlign = 32;

std::int64_t aligned(std::int64_t count) { return (count + kAlign - 1) / kAlign * kAlign; }

// The head's inputs in the form that products need: f32 or bf16, with an even K, and without the
// rows that have no target.
struct Head {
  DType dtype = DType::f32;
  const char* x = nullptr;       // [rows, ld]
  const char* weight = nullptr;  // [vocabulary, ld]
  std::int64_t rows = 0, columns = 0, vocabulary = 0, ld = 0;
  std::int64_t slice_rows = 0, logits_ld = 0;
  std::vector<std::int64_t> row;  // row i's index in the caller's tensors
  bool compact = false;           // x was gathered, so row[i] may differ from i
  std::int64_t element() const { return static_cast<std::int64_t>(size_of(dtype)); }
};

void widen_row(const void* from, DType dtype, std::int64_t count, float* to) {
  const auto convert = [&](const auto* source) {
    for (std::int64_t j = 0; j < count; ++j) to[j] = static_cast<float>(source[j]);
  };
  if (dtype == DType::f32)
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  else if (dtype == DType::bf16)
    convert(static_cast<const bfloat16*>(from));
  else
    convert(static_cast<const float16*>(from));
}

class CpuLoss final : public LossKernels {
 public:
  CpuLoss(const CpuResources& resources, ElementwiseKernels& elementwise, std::int64_t slice_bytes)
      : resources_(resources),
        elementwise_(elementwise),
        slice_bytes_(slice_bytes > 0 ? slice_bytes : kSliceBytes),
        gemm_(resources),
        logits_(*resources.memory),
        wide_x_(*resources.memory),
        x_(*resources.memory),
        weight_(*resources.memory),
        bias_(*resources.memory),
        tail_(*resources.memory),
        dx_(*resources.memory),
        sums_(*resources.memory) {}

  void linear_cross_entropy(const LinearCrossEntropyArgs& args, Stream stream) override;
  void cross_entropy(const CrossEntropyArgs& args, Stream stream) override;
  void squared_error(const SquaredErrorArgs& args, Stream stream) override;
  void shard_statistics(View logits, ConstView targets, std::int64_t first_class, float soft_cap,
                        View statistics, Stream stream) override;
  void shard_cross_entropy(const ShardCrossEntropyArgs& args, Stream stream) override;

 private:
  Head prepare(LinearCrossEntropyArgs& args, Stream stream);
  void gather(Head& head, const LinearCrossEntropyArgs& args);
  void logits_of(const Head& head, const LinearCrossEntropyArgs& args, std::int64_t begin,
                 std::int64_t rows);
  void losses_of(const Head& head, const LinearCrossEntropyArgs& args, std::int64_t begin,
                 std::int64_t rows, CrossEntropyRow* results);
  void weight_gradient(const Head& head, const LinearCrossEntropyArgs& args, std::int64_t begin,
                       std::int64_t rows);
  void bias_gradient(const Head& head, const LinearCrossEntropyArgs& args, bool accumulate,
                     std::int64_t rows);
  void input_gradient(const Head& head, std::int64_t begin, std::int64_t rows, void* dx);
  void scatter_input_gradient(const Head& head, const View& dx, std::int64_t begin,
                              std::int64_t rows, Stream stream);

  CpuResources resources_;
  ElementwiseKernels& elementwise_;
  std::int64_t slice_bytes_;
  OneDnnGemm gemm_;
  Scratch logits_, wide_x_, x_, weight_, bias_, tail_, dx_, sums_;
  std::vector<CrossEntropyRow> results_;
};

// Converts views in `args` to f32 copies if products do not support their dtype.
Head CpuLoss::prepare(LinearCrossEntropyArgs& args, Stream stream) {
  const auto widen = [&](Scratch& scratch, ConstView& view) {
    if (!view.defined() || view.dtype == DType::f32) return;
    if (view.dtype == DType::bf16 && gemm_.multiplies_bf16()) return;
    const View wide{scratch.of<float>(view.shape.count()), view.shape, DType::f32, view.device};
    elementwise_.cast(view, wide, stream);
    view = wide;
  };
  widen(wide_x_, args.x);
  widen(weight_, args.weight);
  widen(bias_, args.bias);
  Head head;
  head.dtype = args.x.dtype;
  head.columns = args.x.shape.columns();
  head.vocabulary = args.weight.shape[0];
  head.ld =
      head.dtype == DType::bf16 && head.columns % 2 != 0 ? aligned(head.columns) : head.columns;
  const std::int32_t* target = args.targets.as<std::int32_t>();
  const std::int64_t all = args.x.shape.rows();
  for (std::int64_t i = 0; i < all; ++i)
    if (target[i] >= 0) head.row.push_back(i);
  head.rows = static_cast<std::int64_t>(head.row.size());
  head.compact = head.rows != all;
  gather(head, args);

  head.logits_ld = aligned(head.vocabulary);
  const std::int64_t most =
      std::max<std::int64_t>(slice_bytes_ / (head.logits_ld * 4) / kAlign * kAlign, kAlign);
  const std::int64_t slices = std::max<std::int64_t>((head.rows + most - 1) / most, 1);
  head.slice_rows = aligned((head.rows + slices - 1) / slices);
  return head;
}

// Gathers the rows that have a target, and pads them if K = columns or the last slice's row count
// is odd.
void CpuLoss::gather(Head& head, const LinearCrossEntropyArgs& args) {
  const auto row_bytes = static_cast<std::size_t>(head.columns * head.element());
  const auto padded_bytes = static_cast<std::size_t>(head.ld * head.element());
  const auto copy_rows = [&](Scratch& scratch, const void* from, std::int64_t rows,
                             std::int64_t padded_rows, const std::int64_t* index) {
    char* to = static_cast<char*>(
        scratch.bytes(std::max<std::int64_t>(padded_rows * head.ld * head.element(), 64)));
    parallel_for(resources_.threads, padded_rows, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        char* row = to + static_cast<std::size_t>(i) * padded_bytes;
        const std::size_t have = i < rows ? row_bytes : 0;
        if (have > 0)
          std::memcpy(row,
                      static_cast<const char*>(from) +
                          static_cast<std::size_t>(index ? index[i] : i) * row_bytes,
                      have);
        std::memset(row + have, 0, padded_bytes - have);
      }
    });
    return to;
  };
  head.x = static_cast<const char*>(args.x.data);
  head.weight = static_cast<const char*>(args.weight.data);
  const bool odd_rows = head.dtype == DType::bf16 && head.rows % 2 != 0;
  if (head.compact || odd_rows || head.ld != head.columns)
    head.x = copy_rows(x_, args.x.data, head.rows, aligned(head.rows), head.row.data());
  if (head.ld != head.columns)
    head.weight = copy_rows(weight_, args.weight.data, head.vocabulary, head.vocabulary, nullptr);
}

void CpuLoss::logits_of(const Head& head, const LinearCrossEntropyArgs& args, std::int64_t begin,
                        std::int64_t rows) {
  GemmProblem p;
  p.m = rows;
  p.n = head.vocabulary;
  p.k = p.lda = p.ldb = head.ld;
  p.ldc = head.logits_ld;
  p.input = head.dtype;
  p.transpose_b = true;
  p.has_bias = args.bias.defined();
  if (p.has_bias) p.bias = args.bias.dtype;
  gemm_.run(p, head.x + begin * head.ld * head.element(), head.weight, args.bias.data,
            logits_.of<float>(head.slice_rows * head.logits_ld));
}

// Computes the losses of a slice. If any gradient is wanted, its logits become gradients. Rows up
// to the next multiple of kAlign become zeros, so that they may be part of K in the weight's
// gradient.
void CpuLoss::losses_of(const Head& head, const LinearCrossEntropyArgs& args, std::int64_t begin,
                        std::int64_t rows, CrossEntropyRow* results) {
  const bool backward = args.dx.defined() || args.dweight.defined() || args.dbias.defined();
  const float scale = whole_scale(args.loss_scale, args.state);
  float* logits = logits_.of<float>(head.slice_rows * head.logits_ld);
  const std::int32_t* target = args.targets.as<std::int32_t>();
  const auto columns = static_cast<std::size_t>(head.vocabulary),
             ld = static_cast<std::size_t>(head.logits_ld);
  parallel_for(resources_.threads, aligned(rows), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      float* row = logits + i * head.logits_ld;
      if (i >= rows) {
        std::memset(row, 0, ld * sizeof(float));
        continue;
      }
      results[i] = cross_entropy_row(
          row, head.vocabulary, target[head.row[static_cast<std::size_t>(begin + i)]],
          args.label_smoothing, args.soft_cap, scale, backward ? row : nullptr, head.dtype);
      // dx's product reads columns up to the next multiple of kAlign.
      const std::size_t element = size_of(head.dtype);
      std::memset(reinterpret_cast<char*>(row) + columns * element, 0, (ld - columns) * element);
    }
  });
}

// Gradient rows have the byte stride of logit rows, which is twice as many elements in bf16.
std::int64_t gradient_ld(const Head& head) { return head.logits_ld * 4 / head.element(); }

void CpuLoss::weight_gradient(const Head& head, const LinearCrossEntropyArgs& args,
                              std::int64_t begin, std::int64_t rows) {
  GemmProblem p;
  p.m = head.vocabulary;
  p.n = head.columns;
  p.k = head.dtype == DType::bf16 && rows % 2 != 0 ? aligned(rows) : rows;
  p.lda = gradient_ld(head);
  p.ldb = head.ld;
  p.input = head.dtype;
  p.transpose_a = true;
  p.accumulate = args.accumulate_dweight || begin > 0;
  gemm_.run(p, logits_.of<float>(1), head.x + begin * head.ld * head.element(), nullptr,
            args.dweight.data);
}

void CpuLoss::bias_gradient(const Head& head, const LinearCrossEntropyArgs& args, bool accumulate,
                            std::int64_t rows) {
  const char* gradients = reinterpret_cast<const char*>(logits_.of<float>(1));
  float* total = args.dbias.as<float>();
  float* sums = sums_.of<float>(head.vocabulary);
  parallel_for(resources_.threads, head.vocabulary, 1024,
               [&](std::int64_t begin, std::int64_t end) {
                 sum_of_rows(gradients + begin * head.element(), head.dtype, rows, end - begin,
                             gradient_ld(head), sums + begin);
                 for (std::int64_t j = begin; j < end; ++j)
                   total[j] = (accumulate ? total[j] : 0) + sums[j];
               });
}

// dx [rows, columns] = gradients · weight, K being the vocabulary. In bf16 the part beyond the last
// multiple of kAlign is a separate product, with zero-padded weight rows.
void CpuLoss::input_gradient(const Head& head, std::int64_t begin, std::int64_t rows, void* dx) {
  const std::int64_t rest = head.dtype == DType::bf16 ? head.vocabulary % kAlign : 0,
                     main = head.vocabulary - rest;
  const char* gradients = reinterpret_cast<const char*>(logits_.of<float>(1));
  GemmProblem p;
  p.m = rows;
  p.n = head.columns;
  p.lda = gradient_ld(head);
  p.input = p.output = head.dtype;
  if (rest > 0) {
    const auto row_bytes = static_cast<std::size_t>(head.ld * head.element());
    char* tail = static_cast<char*>(tail_.bytes(kAlign * head.ld * head.element()));
    if (begin == 0) {
      const std::size_t have = static_cast<std::size_t>(rest) * row_bytes;
      std::memcpy(tail, head.weight + static_cast<std::size_t>(main) * row_bytes, have);
      std::memset(tail + have, 0, static_cast<std::size_t>(kAlign) * row_bytes - have);
    }
    p.k = kAlign;
    p.ldb = head.ld;
    gemm_.run(p, gradients + main * head.element(), tail, nullptr, dx);
    p.accumulate = true;
  }
  if (main == 0) return;
  p.k = main;
  p.ldb = head.ld;
  gemm_.run(p, gradients, head.weight, nullptr, dx);
}

// Converts to the caller's rows and dtype.
void CpuLoss::scatter_input_gradient(const Head& head, const View& dx, std::int64_t begin,
                                     std::int64_t rows, Stream stream) {
  const std::int64_t bytes = head.columns * head.element();
  char* slice = static_cast<char*>(dx_.bytes(head.slice_rows * bytes));
  input_gradient(head, begin, rows, slice);
  const Shape shape{head.columns};
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = head.row[static_cast<std::size_t>(begin + i)];
    char* to = static_cast<char*>(dx.data) +
               static_cast<std::size_t>(row * head.columns) * size_of(dx.dtype);
    elementwise_.cast(ConstView(slice + i * bytes, shape, head.dtype),
                      View{to, shape, dx.dtype, dx.device}, stream);
  }
}

void CpuLoss::linear_cross_entropy(const LinearCrossEntropyArgs& given, Stream stream) {
  check_linear_cross_entropy(given);
  LinearCrossEntropyArgs args = given;
  const auto zero = [](const View& view, std::int64_t count) {
    if (view.defined())
      std::memset(view.data, 0, static_cast<std::size_t>(count) * size_of(view.dtype));
  };
  zero(args.token_loss, args.x.shape.rows());
  zero(args.correct, 1);
  zero(args.loss_sum, 1);
  const Head head = prepare(args, stream);
  const bool direct = head.dtype == given.x.dtype && !head.compact;
  if (!direct) zero(args.dx, args.x.shape.count());
  if (head.rows == 0) {
    if (!args.accumulate_dweight) {
      zero(args.dweight, args.weight.shape.count());
      zero(args.dbias, head.vocabulary);
    }
    return;
  }
  results_.resize(static_cast<std::size_t>(head.rows));
  for (std::int64_t begin = 0; begin < head.rows; begin += head.slice_rows) {
    const std::int64_t rows = std::min(head.slice_rows, head.rows - begin);
    logits_of(head, args, begin, rows);
    losses_of(head, args, begin, rows, results_.data() + begin);
    if (args.dweight.defined()) weight_gradient(head, args, begin, rows);
    if (args.dbias.defined()) bias_gradient(head, args, args.accumulate_dweight || begin > 0, rows);
    if (!args.dx.defined()) continue;
    if (direct)
      input_gradient(head, begin, rows,
                     static_cast<char*>(args.dx.data) + begin * head.columns * head.element());
    else
      scatter_input_gradient(head, args.dx, begin, rows, stream);
  }
  double total = 0;
  std::int32_t correct = 0;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    total += static_cast<double>(results_[i].loss);
    correct += results_[i].correct ? 1 : 0;
    if (args.token_loss.defined()) args.token_loss.as<float>()[head.row[i]] = results_[i].loss;
  }
  *args.loss_sum.as<float>() = static_cast<float>(total);
  if (args.correct.defined()) *args.correct.as<std::int32_t>() = correct;
}

void CpuLoss::cross_entropy(const CrossEntropyArgs& args, Stream) {
  const ConstView &logits = args.logits, &targets = args.targets;
  const View &loss_sum = args.loss_sum, &dlogits = args.dlogits;
  const float label_smoothing = args.label_smoothing,
              loss_scale = whole_scale(args.loss_scale, args.state);
  check_cross_entropy(logits, targets, label_smoothing, loss_sum, dlogits);
  const std::int64_t rows = logits.shape.rows(), vocabulary = logits.shape.columns();
  const std::int64_t pieces = std::clamp<std::int64_t>(rows / 4, 1, resources_.threads);
  const DType dtype = dlogits.defined() ? dlogits.dtype : DType::f32;
  float* buffers = logits_.of<float>(std::max<std::int64_t>(pieces * vocabulary, 1));
  results_.assign(static_cast<std::size_t>(rows), {});
  const auto row_of = [&](const void* data, DType type, std::int64_t i) {
    return static_cast<const char*>(data) +
           static_cast<std::size_t>(i * vocabulary) * size_of(type);
  };
  parallel_for(resources_.threads, pieces, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t piece = first; piece < last; ++piece) {
      float* buffer = buffers + piece * vocabulary;
      for (std::int64_t i = rows * piece / pieces; i < rows * (piece + 1) / pieces; ++i) {
        void* gradient =
            dlogits.defined() ? const_cast<char*>(row_of(dlogits.data, dtype, i)) : nullptr;
        const std::int32_t target = targets.as<std::int32_t>()[i];
        if (target < 0) {
          if (gradient)
            std::memset(gradient, 0, static_cast<std::size_t>(vocabulary) * size_of(dtype));
          continue;
        }
        widen_row(row_of(logits.data, logits.dtype, i), logits.dtype, vocabulary, buffer);
        results_[static_cast<std::size_t>(i)] = cross_entropy_row(
            buffer, vocabulary, target, label_smoothing, 0, loss_scale, gradient, dtype);
      }
    }
  });
  double total = 0;
  for (const CrossEntropyRow& row : results_) total += static_cast<double>(row.loss);
  *loss_sum.as<float>() = static_cast<float>(total);
}

void CpuLoss::squared_error(const SquaredErrorArgs& args, Stream) {
  const ConstView &x = args.x, &targets = args.targets;
  const View& dx = args.dx;
  const float loss_scale = whole_scale(args.loss_scale, args.state);
  check_squared_error(x, targets, args.loss_sum, dx);
  const std::int64_t count = x.shape.count();
  float* values = logits_.of<float>(std::max<std::int64_t>(count, 1));
  widen_row(static_cast<const char*>(x.data), x.dtype, count, values);
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float target = targets.as<float>()[i],
                apart = std::isnan(target) ? 0.0f : values[i] - target;
    sum += static_cast<double>(apart) * static_cast<double>(apart);
    values[i] = 2 * loss_scale * apart;
  }
  *args.loss_sum.as<float>() = static_cast<float>(sum);
  if (dx.defined()) elementwise_.cast(ConstView(values, dx.shape, DType::f32), dx, {});
}

// Column of a class in this rank's logits; negative if another rank owns the class.
std::int64_t column_of(std::int32_t target, std::int64_t first_class, std::int64_t columns) {
  const std::int64_t column = target - first_class;
  return target >= 0 && column >= 0 && column < columns ? column : -1;
}

void CpuLoss::shard_statistics(View logits, ConstView targets, std::int64_t first_class,
                               float soft_cap, View statistics, Stream) {
  check_shard_statistics(logits, targets, first_class, soft_cap, statistics);
  const std::int64_t rows = targets.shape.count(), columns = logits.shape[1];
  parallel_for(resources_.threads, rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const ShardRow row = shard_row_statistics(
          columns > 0 ? logits.as<float>() + i * columns : nullptr, columns,
          column_of(targets.as<std::int32_t>()[i], first_class, columns), soft_cap);
      float* out = statistics.as<float>() + i * kShardStatistics;
      out[0] = row.largest;
      out[1] = row.sum;
      out[2] = row.target_logit;
      out[3] = row.total;
    }
  });
}

// One row's statistics, combined over the ranks.
struct CombinedRow {
  float largest = -INFINITY;
  double sum = 0, target_logit = 0, total = 0;
};

CombinedRow combined(ConstView statistics, std::int64_t row) {
  const std::int64_t ranks = statistics.shape[0], rows = statistics.shape[1];
  const auto of = [&](std::int64_t rank) {
    return statistics.as<float>() + (rank * rows + row) * kShardStatistics;
  };
  CombinedRow all;
  for (std::int64_t rank = 0; rank < ranks; ++rank) all.largest = std::max(all.largest, *of(rank));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const float* one = of(rank);
    // A rank with no classes or only masked ones adds 0; exp(-inf - -inf) would be NaN.
    if (one[1] != 0)
      all.sum += static_cast<double>(one[1]) *
                 std::exp(static_cast<double>(one[0]) - static_cast<double>(all.largest));
    all.target_logit += static_cast<double>(one[2]);
    all.total += static_cast<double>(one[3]);
  }
  return all;
}

void CpuLoss::shard_cross_entropy(const ShardCrossEntropyArgs& args, Stream) {
  check_shard_cross_entropy(args);
  const std::int64_t rows = args.targets.shape.count(), columns = args.exponentials.shape[1];
  const auto smoothing = static_cast<double>(args.label_smoothing),
             scale = static_cast<double>(whole_scale(args.loss_scale, args.state)),
             n = static_cast<double>(args.classes);
  const bool backward = args.dlogits.defined() && columns > 0;
  parallel_for(resources_.threads, rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t target = args.targets.as<std::int32_t>()[i];
      char* gradient = backward
                           ? static_cast<char*>(args.dlogits.data) +
                                 static_cast<std::size_t>(i * columns) * size_of(args.dlogits.dtype)
                           : nullptr;
      float& loss = args.token_loss.as<float>()[i];
      loss = 0;
      if (target < 0) {
        if (gradient)
          std::memset(gradient, 0, static_cast<std::size_t>(columns) * size_of(args.dlogits.dtype));
        continue;
      }
      const CombinedRow all = combined(args.statistics, i);
      const double log_sum = static_cast<double>(all.largest) + std::log(all.sum);
      double exact = (1 - smoothing) * (log_sum - all.target_logit);
      if (smoothing > 0) exact += smoothing * (log_sum - all.total / n);  // as cross_entropy_row
      loss = static_cast<float>(exact);
      if (!gradient) continue;
      const float own = args.statistics.as<float>()[(args.rank * rows + i) * kShardStatistics];
      // exp(own - largest) / sum; the sum carries any NaN among the logits.
      const double factor =
          scale * std::exp(static_cast<double>(own) - static_cast<double>(all.largest)) / all.sum;
      shard_row_gradient({.kept = args.exponentials.as<float>() + i * columns,
                          .columns = columns,
                          .target = column_of(target, args.first_class, columns),
                          .factor = static_cast<float>(factor),
                          .offset = static_cast<float>(scale * smoothing / n),
                          .target_less = static_cast<float>(scale * (1 - smoothing)),
                          .largest = own,
                          .soft_cap = args.soft_cap},
                         gradient, args.dlogits.dtype);
    }
  });
}

}  // namespace

std::unique_ptr<LossKernels> make_cpu_loss(const CpuResources& resources,
                                           ElementwiseKernels& elementwise,
                                           std::int64_t slice_bytes) {
  return std::make_unique<CpuLoss>(resources, elementwise, slice_bytes);
}

}  // namespace shoal::kernels
