// OptimizerKernels on the GPU. An update reads all its inputs from device memory when it runs, so
// that a captured step can be replayed.
#include "shoal/kernels/optimizer.h"

#include <algorithm>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cuda/adafactor.cuh"
#include "shoal/kernels/cuda/families.h"
#include "shoal/kernels/cuda/optimizer.cuh"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

bool aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}
// True if accesses of four elements are aligned. Null pointers count as aligned: they are never
// accessed.
bool suits_fours(const ConstView& view) { return aligned(view.data, 4 * size_of(view.dtype)); }

std::uint32_t chunks_of(std::int64_t count, std::int64_t chunk) {
  return static_cast<std::uint32_t>((count + chunk - 1) / chunk);
}

void fill(AdamWTensor& tensor, const AdamWArgs& args) {
  tensor.master = static_cast<float*>(args.master.data);
  tensor.first_moment = static_cast<float*>(args.first_moment.data);
  tensor.second_moment = static_cast<float*>(args.second_moment.data);
  tensor.gradient = static_cast<const float*>(args.gradient.data);
  tensor.parameter = args.parameter.data;
  tensor.count = args.master.shape.count();
  tensor.weight_decay = args.weight_decay;
  tensor.copy = args.parameter.dtype;
  tensor.whole = suits_fours(args.master) && suits_fours(args.first_moment) &&
                 suits_fours(args.second_moment) && suits_fours(args.gradient) &&
                 suits_fours(args.parameter);
}
void fill(RoundedTensor& tensor, const AdamWArgs& args) {
  fill(static_cast<AdamWTensor&>(tensor), args);
  tensor.master = nullptr;
  tensor.parameter = args.master.data;
  tensor.copy = DType::bf16;
  tensor.place = *args.rounding;
}

void fill(FactoredTensor& tensor, const AdamWArgs& args, const MatrixPlace& place, double* sums) {
  if (args.rounding)
    fill(static_cast<RoundedTensor&>(tensor), args);
  else
    fill(static_cast<AdamWTensor&>(tensor), args);
  static_cast<ElementPlace&>(tensor.place) = place.place;
  tensor.elements = place.count;
  tensor.rows = place.rows;
  tensor.columns = place.columns;
  tensor.part_rows = place.part_rows;
  tensor.part_columns = place.part_columns;
  tensor.sums = sums;
}

std::int64_t element_chunks(const FactoredTensor& x) { return chunks_of(x.count, kAdafactorChunk); }

SquaresTensor tensor_of(const ConstView& x) {
  return {x.data, x.shape.count(), 0, x.dtype, suits_fours(x)};
}

class CudaOptimizer final : public OptimizerKernels {
 public:
  explicit CudaOptimizer(CudaResources& resources) : resources_(resources) {}

  void set_step(StepState* state, const StepNumbers& numbers, Stream stream) override {
    SHOAL_CHECK(state != nullptr, "set_step: there is no StepState");
    check_cuda(launch_set_step(state, numbers, resources_.begin(stream)), "set_step");
  }

  void begin_update(const BeginUpdateArgs& args, Stream stream) override {
    check::begin_update(args);
    check_cuda(launch_begin_update(static_cast<const double*>(args.sum_of_squares.data),
                                   args.max_norm, static_cast<double*>(args.norm.data), args.state,
                                   args.scaling, resources_.begin(stream)),
               "begin_update");
  }

  void adamw(const AdamWArgs& args, Stream stream) override { adamw_many({&args, 1}, stream); }

  void adamw_many(std::span<const AdamWArgs> args, Stream stream) override {
    for (const AdamWArgs& one : args) check::adamw("adamw", one);
    check::alike("adamw_many", args);
    const cudaStream_t native = resources_.begin(stream);
    by_table(args, kAdamWChunk, [&](const auto& table, std::size_t) {
      if (table.chunks == 0) return;
      check_cuda(launch_adamw(table, resources_.multiprocessors(), native), "adamw");
    });
  }

  void lion_many(std::span<const AdamWArgs> args, Stream stream) override {
    check::lion(args);
    const cudaStream_t native = resources_.begin(stream);
    by_table(args, kAdamWChunk, [&](const auto& table, std::size_t) {
      if (table.chunks == 0) return;
      check_cuda(launch_lion(table, resources_.multiprocessors(), native), "lion");
    });
  }

  void sgd(const SgdArgs& args, Stream stream) override {
    check::sgd(args);
    SgdTensor tensor{};
    tensor.master = static_cast<float*>(args.master.data);
    if (args.momentum != 0) tensor.momentum_buffer = static_cast<float*>(args.momentum_buffer.data);
    tensor.gradient = static_cast<const float*>(args.gradient.data);
    tensor.parameter = args.parameter.data;
    tensor.count = args.master.shape.count();
    tensor.copy = args.parameter.dtype;
    tensor.whole = suits_fours(args.master) && aligned(tensor.momentum_buffer, 16) &&
                   suits_fours(args.gradient) && suits_fours(args.parameter);
    tensor.nesterov = args.nesterov;
    tensor.momentum = static_cast<float>(args.momentum);
    tensor.one_minus_dampening = static_cast<float>(1 - args.dampening);
    tensor.weight_decay = static_cast<float>(args.weight_decay);
    tensor.state = args.state;
    tensor.fault = resources_.fault();
    const cudaStream_t native = resources_.begin(stream);
    if (tensor.count == 0) return;
    check_cuda(launch_sgd(tensor, resources_.multiprocessors(), native), "sgd");
  }

  void lamb_moments(const LambArgs& args, Stream stream) override {
    check::lamb(args);
    const cudaStream_t native = resources_.begin(stream);
    auto* const squares = args.squares.as<double>();
    by_table(args.tensors, kLambChunk, [&](const auto& table, std::size_t first) {
      const Buffer resources =
          resources_.scratch(std::max<std::size_t>(table.chunks, 1) * 2 * sizeof(double), stream);
      auto* const partial = static_cast<double*>(resources.data());
      if (table.chunks > 0)
        check_cuda(launch_lamb_moments(table, partial, resources_.multiprocessors(), native),
                   "lamb");
      check_cuda(launch_lamb_squares(table, partial, squares + 2 * first, native), "lamb");
    });
  }

  void lamb_apply(const LambArgs& args, Stream stream) override {
    check::lamb(args);
    const cudaStream_t native = resources_.begin(stream);
    const auto* const squares = args.squares.as<double>();
    by_table(args.tensors, kLambChunk, [&](const auto& table, std::size_t first) {
      if (table.chunks == 0) return;
      check_cuda(launch_lamb_apply(table, squares + 2 * first, args.max_trust_ratio,
                                   resources_.multiprocessors(), native),
                 "lamb");
    });
  }

  void adafactor_sums(const AdafactorArgs& args, Stream stream) override {
    check::adafactor(args);
    const cudaStream_t native = resources_.begin(stream);
    if (args.sums.shape.count() > 0)
      check_cuda(cudaMemsetAsync(args.sums.data, 0,
                                 static_cast<std::size_t>(args.sums.shape.count()) * sizeof(double),
                                 native),
                 "adafactor");
    by_table(args, [&](FactoredTable& table) {
      count_chunks(table, [](const FactoredTensor& x) {
        return chunks_of(x.touched_rows(), kFactoredRows);
      });
      if (table.chunks == 0) return;
      check_cuda(launch_factored_rows(table, resources_.multiprocessors(), native), "adafactor");
      count_chunks(table, [](const FactoredTensor& x) {
        return x.touched_matrices() * x.column_tiles() * x.row_blocks();
      });
      const Buffer room =
          resources_.scratch(table.chunks * std::size_t{kColumnTile} * sizeof(double), stream);
      auto* const partial = static_cast<double*>(room.data());
      check_cuda(launch_factored_columns(table, partial, resources_.multiprocessors(), native),
                 "adafactor");
      check_cuda(launch_factored_columns_total(table, partial, native), "adafactor");
    });
  }

  void adafactor_moments(const AdafactorArgs& args, Stream stream) override {
    check::adafactor(args);
    const cudaStream_t native = resources_.begin(stream);
    by_table(args, [&](FactoredTable& table) {
      count_chunks(table, element_chunks);
      check_cuda(launch_factored_moments(table, args.decay_rate, native), "adafactor");
      const Buffer room =
          resources_.scratch(std::max<std::size_t>(table.chunks, 1) * sizeof(double), stream);
      auto* const partial = static_cast<double*>(room.data());
      if (table.chunks > 0)
        check_cuda(launch_adafactor_squares(table, args.decay_rate, partial,
                                            resources_.multiprocessors(), native),
                   "adafactor");
      check_cuda(launch_adafactor_squares_total(table, partial, native), "adafactor");
    });
  }

  void adafactor_apply(const AdafactorArgs& args, Stream stream) override {
    check::adafactor(args);
    const cudaStream_t native = resources_.begin(stream);
    by_table(args, [&](FactoredTable& table) {
      count_chunks(table, element_chunks);
      if (table.chunks == 0) return;
      check_cuda(
          launch_adafactor_apply(table, args.clip_threshold, resources_.multiprocessors(), native),
          "adafactor");
    });
  }

  void sum_of_squares(ConstView x, View out, bool accumulate, Stream stream) override {
    check::sum_of_squares(x, out);
    squares_of({&x, 1}, static_cast<double*>(out.data), accumulate, stream);
  }

  void sum_of_squares_many(std::span<const ConstView> xs, View out, Stream stream) override {
    for (const ConstView& x : xs) check::sum_of_squares(x, out);
    squares_of(xs, out.as<double>(), false, stream);
  }

  bool has_non_finite(ConstView x, Stream stream) override {
    check::training_float("has_non_finite", "x", x);
    const cudaStream_t native = resources_.begin(stream);
    if (x.shape.count() == 0) return false;
    const Buffer flag = resources_.scratch(sizeof(std::uint32_t), stream);
    auto* found = static_cast<std::uint32_t*>(flag.data());
    check_cuda(cudaMemsetAsync(found, 0, sizeof(std::uint32_t), native), "has_non_finite");
    check_cuda(launch_non_finite(tensor_of(x), found, resources_.multiprocessors(), native),
               "has_non_finite");
    std::uint32_t answer = 0;
    resources_.copy(&answer, found, sizeof answer, native);
    resources_.wait_for(native);
    return answer != 0;
  }

 private:
  AdamWSettings settings_of(const AdamWArgs& args) const {
    return {args.state, args.beta1, args.beta2, args.epsilon, resources_.fault()};
  }

  // Calls use(table, index of its first tensor) for tables of all of `args`, in chunks of `chunk`
  // elements.
  template <class Use>
  void by_table(std::span<const AdamWArgs> args, std::int64_t chunk, const Use& use) {
    if (!args.empty() && args[0].rounding)
      by_table(args, chunk, use, *few_rounded_, *many_rounded_);
    else
      by_table(args, chunk, use, *few_, *many_);
  }
  template <class Use, class Few, class Many>
  void by_table(std::span<const AdamWArgs> args, std::int64_t chunk, const Use& use, Few& few,
                Many& many) {
    for (std::size_t first = 0; first < args.size();) {
      const auto some = args.subspan(first, std::min(args.size() - first, std::size(many.tensor)));
      if (some.size() <= std::size(few.tensor))
        use(filled(few, some, chunk), first);
      else
        use(filled(many, some, chunk), first);
      first += some.size();
    }
  }

  // Calls use(table) for tables of all of `args`, without chunks.
  template <class Use>
  void by_table(const AdafactorArgs& args, const Use& use) {
    auto* sums = args.sums.as<double>();
    for (std::size_t i = 0; i < args.tensors.size();) {
      FactoredTable& table = *factored_;
      table.settings = settings_of(args.tensors[i]);
      for (table.tensors = 0; table.tensors < kManyFactored && i < args.tensors.size(); ++i) {
        fill(table.tensor[table.tensors++], args.tensors[i], args.places[i], sums);
        sums += adafactor_room(args.places[i]);
      }
      use(table);
    }
  }
  template <class Count>
  static void count_chunks(FactoredTable& table, const Count& count) {
    table.chunks = 0;
    for (std::uint32_t t = 0; t < table.tensors; ++t) {
      table.tensor[t].first_chunk = table.chunks;
      table.chunks += static_cast<std::uint32_t>(count(table.tensor[t]));
    }
  }

  template <class Table>
  const Table& filled(Table& table, std::span<const AdamWArgs> args, std::int64_t chunk) const {
    table.settings = settings_of(args[0]);
    table.tensors = table.chunks = 0;
    for (const AdamWArgs& one : args) {
      auto& tensor = table.tensor[table.tensors++];
      fill(tensor, one);
      tensor.first_chunk = table.chunks;  // an empty tensor gets the next one's first chunk
      table.chunks += chunks_of(tensor.count, chunk);
    }
    return table;
  }

  // Adds the squares of each table in up to kSquaresSums sums, then adds these. The order depends
  // only on the sizes.
  void squares_of(std::span<const ConstView> xs, double* out, bool accumulate, Stream stream) {
    const cudaStream_t native = resources_.begin(stream);
    const std::size_t capacity = kManySquares, tables = (xs.size() + capacity - 1) / capacity;
    const Buffer resources = resources_.scratch(
        std::max<std::size_t>(tables, 1) * kSquaresSums * sizeof(double), stream);
    auto* partial = static_cast<double*>(resources.data());
    int sums = 0;
    while (!xs.empty()) {
      const std::size_t some = std::min(xs.size(), capacity);
      sums += some <= kFewSquares
                  ? queue_squares(xs.first(some), *few_squares_, partial + sums, native)
                  : queue_squares(xs.first(some), *many_squares_, partial + sums, native);
      xs = xs.subspan(some);
    }
    check_cuda(launch_squares_total(partial, sums, out, accumulate, native), "sum_of_squares");
  }

  // Returns the number of sums.
  template <int capacity>
  int queue_squares(std::span<const ConstView> xs, SquaresTable<capacity>& table, double* partial,
                    cudaStream_t native) {
    table.tensors = table.chunks = 0;
    for (const ConstView& x : xs) {
      if (x.shape.count() == 0) continue;
      SquaresTensor& tensor = table.tensor[table.tensors++] = tensor_of(x);
      tensor.first_chunk = table.chunks;
      table.chunks += chunks_of(tensor.count, kSquaresChunk);
    }
    if (table.chunks == 0) return 0;
    check_cuda(launch_squares(table, partial, native), "sum_of_squares");
    return squares_blocks(table.chunks);
  }

  CudaResources& resources_;
  // Launch parameters, too large for the stack.
  std::unique_ptr<FewTensors> few_ = std::make_unique<FewTensors>();
  std::unique_ptr<ManyTensors> many_ = std::make_unique<ManyTensors>();
  std::unique_ptr<FewRounded> few_rounded_ = std::make_unique<FewRounded>();
  std::unique_ptr<ManyRounded> many_rounded_ = std::make_unique<ManyRounded>();
  std::unique_ptr<FactoredTable> factored_ = std::make_unique<FactoredTable>();
  std::unique_ptr<SquaresTable<kFewSquares>> few_squares_ =
      std::make_unique<SquaresTable<kFewSquares>>();
  std::unique_ptr<SquaresTable<kManySquares>> many_squares_ =
      std::make_unique<SquaresTable<kManySquares>>();
};

}  // namespace

std::unique_ptr<OptimizerKernels> make_cuda_optimizer(CudaResources& resources) {
  return std::make_unique<CudaOptimizer>(resources);
}

}  // namespace shoal::kernels
