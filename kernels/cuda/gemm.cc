#include "shoal/kernels/cuda/gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "shoal/kernels/cuda/gemm_finish.cuh"
#include "shoal/kernels/cuda/gemm_plan.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::kernels {
namespace {

constexpr double kWorthTiming = 1e9;  // operations
constexpr double kWorthChanging = 0.98;
constexpr std::size_t kMostPlans = 1024;

cuda::GemmActivation activation_of(Activation kind) {
  switch (kind) {
    case Activation::none:
      return cuda::GemmActivation::none;
    case Activation::gelu_tanh:
      return cuda::GemmActivation::gelu_tanh;
    case Activation::gelu_erf:
      return cuda::GemmActivation::gelu_erf;
    case Activation::tanh:
      return cuda::GemmActivation::tanh;
    case Activation::relu:
      return cuda::GemmActivation::relu;
  }
  SHOAL_ASSERT(false);
}

std::string device_name(const CudaRoom& room) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, room.device().index), "naming the device");
  return fmt::format("{} {} sm", properties.name, room.multiprocessors());
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking for a capture");
  return status != cudaStreamCaptureStatusNone;
}

// Times work on a stream with a pair of events; blocks.
class StreamTimer {
 public:
  StreamTimer() {
    check_cuda(cudaEventCreate(&begin_), "creating an event");
    check_cuda(cudaEventCreate(&end_), "creating an event");
  }
  ~StreamTimer() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  // Microseconds for one of `repetitions` calls, the better of two rounds; infinite where `work`
  // returns false.
  template <class F>
  double measure(cudaStream_t stream, int repetitions, const F& work) {
    double best = std::numeric_limits<double>::infinity();
    if (!work()) return best;  // warms up
    for (int round = 0; round < 2; ++round) {
      check_cuda(cudaEventRecord(begin_, stream), "recording an event");
      for (int i = 0; i < repetitions; ++i)
        if (!work()) return std::numeric_limits<double>::infinity();
      check_cuda(cudaEventRecord(end_, stream), "recording an event");
      device_backend(DeviceType::cuda).count({.synchronizations = 1});
      check_cuda(cudaEventSynchronize(end_), "timing a product");
      float milliseconds = 0;
      check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing a product");
      best = std::min(best, 1e3 * static_cast<double>(milliseconds) / repetitions);
    }
    return best;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class Gemm final : public CudaGemm {
 public:
  Gemm(CudaRoom& room, const std::string& cache_directory)
      : room_(room),
        times_(!cache_directory.empty()),
        choices_(cache_directory, device_name(room), cublasLtGetVersion()) {
    cublasLtHandle_t handle = nullptr;
    check_cublas(cublasLtCreate(&handle), "starting");
    handle_.reset(handle);
  }

  void run(const GemmArgs& args, Stream stream) override;

 private:
  // A call: its stream as both sides name it.
  struct Queue {
    Stream stream;
    cudaStream_t native;
  };

  void multiply(const GemmArgs& args, const Queue& queue);
  void multiply_then_finish(const GemmArgs& args, const Queue& queue);
  void plain(const GemmArgs& args, const Queue& queue);
  // `product`: its matrix and dtype; undefined for a sum of nothing.
  void finish(const GemmArgs& args, const GemmArgs& product, bool add_bias, bool keep,
              const Queue& queue);
  GemmPlan& plan_for(const GemmArgs& args, GemmFusion fusion, const Queue& queue);
  void choose(GemmPlan& plan, const GemmKey& key, const GemmArgs& args, const Queue& queue);
  GemmChoice time(GemmPlan& plan, const GemmKey& key, GemmArgs args, const Queue& queue);

  CudaRoom& room_;
  CublasHandle handle_;
  bool times_, said_plain_ = false;
  GemmChoices choices_;
  std::unordered_map<GemmKey, GemmPlan, GemmKeyHash> plans_;
};

void Gemm::run(const GemmArgs& given, Stream stream) {
  const Queue queue{stream, room_.begin(stream)};
  GemmArgs args = given;
  if (args.m <= 0 || args.n <= 0 || args.groups <= 0) return;
  // What is written over by the activation is not kept.
  if (!args.aux_is_input && args.aux.data == args.c.data) args.aux = {};
  const bool ends = args.bias || args.activation != Activation::none || args.aux.data;
  SHOAL_CHECK(!ends || (args.groups == 1 && args.beta == 0),
              "a product of {} groups that {} takes no bias, activation or gate", args.groups,
              args.beta == 0 ? "overwrites" : "adds");
  SHOAL_CHECK(!args.aux_is_input || (args.aux.data && !args.bias && args.aux.data != args.c.data),
              "a product with an activation's gradient needs its input, apart from the result, and "
              "takes no bias");
  if (args.k == 0) return ends ? finish(args, {}, true, true, queue) : plain(args, queue);
  Buffer aligned;
  if (args.bias && args.bias_dtype == args.output && !aligned_for_epilogue(args.bias)) {
    const std::size_t bytes = static_cast<std::size_t>(args.n) * size_of(args.output);
    aligned = room_.scratch(bytes, stream);
    check_cuda(
        cudaMemcpyAsync(aligned.data(), args.bias, bytes, cudaMemcpyDeviceToDevice, queue.native),
        "copying a bias");
    args.bias = aligned.data();
  }
  multiply(args, queue);
}

void Gemm::multiply(const GemmArgs& args, const Queue& queue) {
  const GemmFusion widest = widest_fusion(args);
  if (fuses_activation(widest)) {
    GemmPlan& plan = plan_for(args, widest, queue);
    if (plan.fused && plan.run(room_, args, queue.stream, queue.native)) return;
    if (std::exchange(plan.fused, false)) {
      const std::string text = to_string(gemm_key(args, widest));
      log::once(log::Level::info, "gemm fusion " + text,
                fmt::format("cuBLASLt has no fused kernel for {}: the activation is a pass of its "
                            "own",
                            text));
    }
  }
  multiply_then_finish(args, queue);
}

// The product with as much as cuBLASLt does but the activation, and then the rest.
void Gemm::multiply_then_finish(const GemmArgs& args, const Queue& queue) {
  const bool keeps = args.aux.data && !args.aux_is_input;
  GemmArgs product = args;
  product.activation = Activation::none;
  product.aux = {};
  product.aux_is_input = false;
  if (keeps && args.activation != Activation::none) product.c = args.aux;
  Buffer whole;
  bool done = false;
  GemmFusion fusion = without_activation(args);
  if (fusion == GemmFusion::bias) {
    done = plan_for(product, fusion, queue).run(room_, product, queue.stream, queue.native);
    if (!done) fusion = GemmFusion::none;
  }
  if (fusion == GemmFusion::none) {
    product.bias = nullptr;
    if (args.bias && args.output != DType::f32) {  // rounded once, with the bias in it
      whole =
          room_.scratch(static_cast<std::size_t>(args.m * args.n) * sizeof(float), queue.stream);
      product.c = {whole.data(), args.n, 0};
      product.output = DType::f32;
    }
    done = plan_for(product, fusion, queue).run(room_, product, queue.stream, queue.native);
  }
  if (!done) {
    if (!std::exchange(said_plain_, true))
      log::once(
          log::Level::warn, "gemm plain",
          fmt::format("cuBLASLt has no algorithm for {}: this product, and others like it, go "
                      "through a plain kernel, which is slow",
                      to_string(gemm_key(product, fusion))));
    plain(product, queue);
  }
  const bool bias_left = args.bias && !product.bias;
  const bool keep_left = keeps && (bias_left || product.c.data != args.aux.data);
  if (bias_left || keep_left || args.activation != Activation::none)
    finish(args, product, bias_left, keep_left, queue);
}

void Gemm::plain(const GemmArgs& args, const Queue& queue) {
  cuda::PlainProduct p{};
  p.m = args.m;
  p.n = args.n;
  p.k = args.k;
  p.groups = args.groups;
  p.a = args.a.data;
  p.b = args.b.data;
  p.c = const_cast<void*>(args.c.data);
  p.a_group = args.a.stride;
  p.b_group = args.b.stride;
  p.c_group = args.c.stride;
  p.a_row = args.transpose_a ? 1 : args.a.leading;
  p.a_column = args.transpose_a ? args.a.leading : 1;
  p.b_row = args.transpose_b ? 1 : args.b.leading;
  p.b_column = args.transpose_b ? args.b.leading : 1;
  p.c_row = args.c.leading;
  p.input = args.input;
  p.output = args.output;
  p.alpha = args.alpha;
  p.beta = args.beta;
  check_cuda(cuda::launch_plain_product(p, queue.native), "multiplying matrices");
}

void Gemm::finish(const GemmArgs& args, const GemmArgs& product, bool add_bias, bool keep,
                  const Queue& queue) {
  cuda::GemmFinish p{};
  p.rows = args.m;
  p.columns = args.n;
  p.product = product.c.data;
  p.product_leading = product.c.leading;
  p.product_type = product.output;
  if (add_bias) p.bias = args.bias;
  p.bias_type = args.bias_dtype;
  if (args.aux_is_input) {
    p.gate = args.aux.data;
    p.gate_leading = args.aux.leading;
  } else if (keep) {
    p.kept = const_cast<void*>(args.aux.data);
    p.kept_leading = args.aux.leading;
  }
  p.out = const_cast<void*>(args.c.data);
  p.out_leading = args.c.leading;
  p.type = args.output;
  p.activation = activation_of(args.activation);
  check_cuda(cuda::launch_gemm_finish(p, queue.native), "finishing a product");
}

GemmPlan& Gemm::plan_for(const GemmArgs& args, GemmFusion fusion, const Queue& queue) {
  const GemmKey key = gemm_key(args, fusion);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  GemmPlan plan(handle_.get(), key, args);
  if (times_ && plan.candidates() > 0 && gemm_operations(key) >= kWorthTiming)
    choose(plan, key, args, queue);
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_.emplace(key, std::move(plan)).first->second;
}

void Gemm::choose(GemmPlan& plan, const GemmKey& key, const GemmArgs& args, const Queue& queue) {
  const std::string text = to_string(key);
  const std::optional<GemmChoice> choice =
      choices_.find_or_time(text, [&]() -> std::optional<GemmChoice> {
        if (capturing(queue.native)) return std::nullopt;
        try {
          const GemmChoice timed = time(plan, key, args, queue);
          if (std::isfinite(timed.microseconds)) return timed;
        } catch (const Error& problem) {
          if (problem.code() != ErrorCode::out_of_memory) throw;
          log::once(
              log::Level::info, "gemm timing",
              fmt::format("no memory to time algorithms for {}: cuBLASLt's first is taken", text));
        }
        return std::nullopt;
      });
  if (!choice) return;
  plan.fused = choice->fused;
  if (choice->fused && !plan.prefer(*choice))
    log::once(log::Level::warn, choices_.path() + " stale",
              fmt::format("{} holds algorithms that this cuBLASLt does not take; remove it",
                          choices_.path()));
}

// Overwrites c and a kept aux; the caller runs the product afterwards.
GemmChoice Gemm::time(GemmPlan& plan, const GemmKey& key, GemmArgs args, const Queue& queue) {
  Buffer instead;
  if (key.reads_c) {  // c must stay as it is
    const std::int64_t elements = (key.groups - 1) * key.stride_c + key.m * key.ldc;
    instead =
        room_.scratch(static_cast<std::size_t>(elements) * size_of(args.output), queue.stream);
    check_cuda(cudaMemsetAsync(instead.data(), 0, instead.size(), queue.native), "filling scratch");
    args.c.data = instead.data();
  }
  StreamTimer timer;
  const int repetitions = static_cast<int>(std::clamp(4e11 / gemm_operations(key), 2.0, 20.0));
  std::size_t best = 0;
  double first_time = 0, best_time = 0;
  for (std::size_t i = 0; i < plan.candidates(); ++i) {
    const double took = timer.measure(queue.native, repetitions, [&] {
      return plan.run_candidate(i, room_, args, queue.stream, queue.native);
    });
    if (i == 0) first_time = best_time = took;
    if (took < kWorthChanging * first_time && took < best_time) {
      best = i;
      best_time = took;
    }
  }
  GemmChoice choice = plan.choice(best);
  choice.microseconds = best_time;
  double apart = std::numeric_limits<double>::infinity();
  if (fuses_activation(key.fusion)) {
    apart = timer.measure(queue.native, repetitions, [&] {
      multiply_then_finish(args, queue);
      return true;
    });
    if (apart < kWorthChanging * best_time) {
      choice = GemmChoice{};
      choice.fused = false;
      choice.microseconds = apart;
    }
  }
  log::debug("product {}: {:.1f} us by candidate {} of {}, the first takes {:.1f} us{}",
             to_string(key), best_time, best, plan.candidates(), first_time,
             fuses_activation(key.fusion)
                 ? fmt::format("; with the activation apart {:.1f} us", apart)
                 : "");
  return choice;
}

}  // namespace

std::unique_ptr<CudaGemm> make_cuda_gemm(CudaRoom& room, const std::string& cache_directory) {
  return std::make_unique<Gemm>(room, cache_directory);
}

}  // namespace shoal::kernels
