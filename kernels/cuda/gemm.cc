#include "shoal/kernels/cuda/gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/kernels/cuda/gemm_finish.cuh"
#include "shoal/kernels/cuda/gemm_plan.h"
#include "shoal/kernels/cuda/sum_rows.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::kernels {
namespace {

constexpr double kWorthTiming = 1e9;  // operations
constexpr double kWorthChanging = 0.98;
constexpr std::size_t kMostPlans = 1024;
// Tolerance relative to the largest sum. Two orders of f32 additions differ by far less, 16-bit
// sums by more.
constexpr double kSumsDiffer = 1e-3;
constexpr int kTrialsOfSums = 8;

enum class BiasGradient : std::uint8_t { automatic, pass, product };

BiasGradient bias_gradient_of_user() {
  const std::string text = env::get_string(env::kCudaBiasGradient);
  if (text == "auto") return BiasGradient::automatic;
  if (text == "pass") return BiasGradient::pass;
  if (text == "product") return BiasGradient::product;
  throw_error(ErrorCode::invalid_argument, "{}='{}' is not auto, pass or product",
              env::kCudaBiasGradient.name, text);
}

// The columns whose sums are a bias's gradient, in the operand as stored.
struct SummedColumns {
  explicit SummedColumns(const GemmArgs& args)
      : data(args.bias_gradient_of_a ? args.a.data : args.b.data),
        leading(args.bias_gradient_of_a ? args.a.leading : args.b.leading),
        count(args.bias_gradient_of_a ? args.m : args.n) {}
  const void* data;
  std::int64_t leading, count;
};

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

std::string device_name(const CudaResources& resources) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, resources.device().index), "naming the device");
  return fmt::format("{} {} sm", properties.name, resources.multiprocessors());
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

  // Microseconds per call of `repetitions` calls, the better of two rounds; infinite if `work`
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
  Gemm(CudaResources& resources, const std::string& cache_directory)
      : resources_(resources),
        times_(!cache_directory.empty()),
        bias_gradient_(bias_gradient_of_user()),
        choices_(cache_directory, device_name(resources), cublasLtGetVersion()) {
    cublasLtHandle_t handle = nullptr;
    check_cublas(cublasLtCreate(&handle), "starting");
    handle_.reset(handle);
  }

  void run(const GemmArgs& args, Stream stream) override;

 private:
  // Stream of a call, in both representations.
  struct Queue {
    Stream stream;
    cudaStream_t native;
  };

  // A product that also computes a bias's gradient.
  struct Summing {
    GemmPlan plan;
    int trials = kTrialsOfSums;  // trials left; 0: plan.fused is final
  };

  void run_alone(GemmArgs args, const Queue& queue);  // without a bias's gradient
  void multiply(const GemmArgs& args, const Queue& queue);
  void multiply_then_finish(const GemmArgs& args, const Queue& queue);
  bool sum_within(const GemmArgs& args, const Queue& queue);
  void multiply_then_sum(const GemmArgs& args, const Queue& queue);
  void plain(const GemmArgs& args, const Queue& queue);
  // `product.c` and `product.output`: the product's matrix and dtype. An undefined matrix counts as
  // zeros.
  void finish(const GemmArgs& args, const GemmArgs& product, bool add_bias, bool keep,
              const Queue& queue);
  GemmPlan& plan_for(const GemmArgs& args, GemmFusion fusion, const Queue& queue);
  void choose(GemmPlan& plan, const GemmKey& key, const GemmArgs& args, const Queue& queue);
  GemmChoice time(GemmPlan& plan, const GemmKey& key, GemmArgs args, const Queue& queue);
  Buffer instead_of_c(const GemmKey& key, GemmArgs& args, const Queue& queue);
  void choose_sums(Summing& summing, const GemmKey& key, const GemmArgs& args, const Queue& queue);
  std::optional<GemmChoice> try_sums(GemmPlan& plan, const GemmKey& key, GemmArgs args,
                                     const Queue& queue);
  std::vector<float> sums_by_pass(const GemmArgs& args, const Queue& queue);

  CudaResources& resources_;
  CublasHandle handle_;
  bool times_, said_plain_ = false;
  BiasGradient bias_gradient_;
  GemmChoices choices_;
  std::unordered_map<GemmKey, GemmPlan, GemmKeyHash> plans_;
  std::unordered_map<GemmKey, Summing, GemmKeyHash> summing_;
};

void Gemm::run(const GemmArgs& args, Stream stream) {
  const Queue queue{stream, resources_.begin(stream)};
  if (!args.bias_gradient) return run_alone(args, queue);
  SHOAL_CHECK(args.groups == 1 && !args.bias && !args.aux.data &&
                  args.activation == Activation::none &&
                  (args.bias_gradient_of_a ? args.transpose_a : !args.transpose_b) &&
                  SummedColumns(args).leading == SummedColumns(args).count,
              "a bias's gradient is summed beside a plain product of one group, of an operand "
              "stored in {} rows without gaps",
              args.k);
  if (!sum_within(args, queue)) multiply_then_sum(args, queue);
}

void Gemm::run_alone(GemmArgs args, const Queue& queue) {
  if (args.m <= 0 || args.n <= 0 || args.groups <= 0) return;
  // If the activation would overwrite aux, aux is not kept.
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
    aligned = resources_.scratch(bytes, queue.stream);
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
    if (plan.fused && plan.run(resources_, args, queue.stream, queue.native)) return;
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

// Runs the product with everything that cuBLASLt can fuse except the activation. A separate pass
// does the rest.
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
    done = plan_for(product, fusion, queue).run(resources_, product, queue.stream, queue.native);
    if (!done) fusion = GemmFusion::none;
  }
  if (fusion == GemmFusion::none) {
    product.bias = nullptr;
    if (args.bias && args.output != DType::f32) {  // rounds only once, after the bias
      whole = resources_.scratch(static_cast<std::size_t>(args.m * args.n) * sizeof(float),
                                 queue.stream);
      product.c = {whole.data(), args.n, 0};
      product.output = DType::f32;
    }
    done = plan_for(product, fusion, queue).run(resources_, product, queue.stream, queue.native);
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

void Gemm::multiply_then_sum(const GemmArgs& args, const Queue& queue) {
  GemmArgs product = args;
  product.bias_gradient = nullptr;
  run_alone(product, queue);
  const SummedColumns columns(args);
  cuda::sum_rows(resources_, columns.data, args.input, args.k, columns.count, args.bias_gradient,
                 args.adds_bias_gradient, queue.stream, queue.native);
}

// Runs the product and lets cuBLASLt compute the sums. Returns false, with nothing queued, if a
// separate pass must compute them.
bool Gemm::sum_within(const GemmArgs& args, const Queue& queue) {
  const GemmFusion fusion = sums_fusion(args);
  if (fusion == GemmFusion::none || bias_gradient_ == BiasGradient::pass) return false;
  const GemmKey key = gemm_key(args, fusion);
  if (bias_gradient_ == BiasGradient::automatic && (!times_ || gemm_operations(key) < kWorthTiming))
    return false;
  if (const auto known = summing_.find(key);
      known != summing_.end() && known->second.trials == 0 && !known->second.plan.fused)
    return false;
  // cuBLASLt overwrites the sums and needs them aligned.
  const std::int64_t count = SummedColumns(args).count;
  const bool apart = args.adds_bias_gradient || !aligned_for_epilogue(args.bias_gradient);
  Buffer sums;
  GemmArgs within = args;
  if (apart) {
    sums = resources_.scratch(static_cast<std::size_t>(count) * sizeof(float), queue.stream);
    within.bias_gradient = static_cast<float*>(sums.data());
  }
  if (summing_.size() >= kMostPlans) summing_.clear();
  auto found = summing_.find(key);
  if (found == summing_.end())
    found = summing_.emplace(key, Summing{GemmPlan(handle_.get(), key, within)}).first;
  Summing& summing = found->second;
  if (summing.trials > 0) choose_sums(summing, key, within, queue);
  GemmPlan& plan = summing.plan;
  if (summing.trials > 0 || !plan.fused) return false;
  if (!plan.run_candidate(0, resources_, within, queue.stream, queue.native)) {
    plan.fused = false;
    log::once(log::Level::info, "gemm sums " + to_string(key),
              fmt::format("cuBLASLt refuses its own proposal for {}: the bias's gradient is a pass "
                          "of its own",
                          to_string(key)));
    return false;
  }
  if (apart)
    cuda::sum_rows(resources_, within.bias_gradient, DType::f32, 1, count, args.bias_gradient,
                   args.adds_bias_gradient, queue.stream, queue.native);
  return true;
}

// Decides whether cuBLASLt computes the bias's gradient within the product. An attempt without a
// result uses up one trial, except while the stream is captured. `args` must overwrite the bias's
// gradient, which must be aligned.
void Gemm::choose_sums(Summing& summing, const GemmKey& key, const GemmArgs& args,
                       const Queue& queue) {
  const std::string text = to_string(key);
  GemmPlan& plan = summing.plan;
  const auto decide = [&](bool fused, const std::string& why) {
    summing.trials = 0;
    plan.fused = fused;
    if (!why.empty())
      log::once(log::Level::info, "gemm sums " + text,
                fmt::format("{}: the bias's gradient is a pass of its own", why));
  };
  if (plan.candidates() == 0)
    return decide(false, fmt::format("cuBLASLt has no kernel for {}", text));
  const auto attempt = [&]() -> std::optional<GemmChoice> {
    if (capturing(queue.native)) return std::nullopt;
    --summing.trials;
    try {
      return try_sums(plan, key, args, queue);
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::out_of_memory) throw;
      return std::nullopt;
    }
  };
  // If sums within the product are forced, their fastest algorithm is stored under a separate key.
  const bool always = bias_gradient_ == BiasGradient::product;
  const std::optional<GemmChoice> choice =
      times_ ? choices_.find_or_time(always ? text + " always" : text, attempt) : attempt();
  if (!choice) {
    if (summing.trials == 0)
      decide(false, fmt::format("cuBLASLt's sums for {} could not be tried", text));
    return;
  }
  decide(choice->fused, "");
  if (!choice->fused || plan.prefer(*choice)) return;
  decide(false,
         fmt::format("cuBLASLt does not take the algorithm of {} for {}", choices_.path(), text));
}

// Returns the faster of the two ways if cuBLASLt's sums are correct. Returns nullopt if the sums
// cannot be compared because they are all zero or not finite.
std::optional<GemmChoice> Gemm::try_sums(GemmPlan& plan, const GemmKey& key, GemmArgs args,
                                         const Queue& queue) {
  const std::vector<float> expected = sums_by_pass(args, queue);
  double largest = 0;
  for (const float sum : expected) {
    if (!std::isfinite(sum)) return std::nullopt;
    largest = std::max(largest, std::abs(static_cast<double>(sum)));
  }
  if (largest == 0) return std::nullopt;
  const std::size_t bytes = expected.size() * sizeof(float);
  Buffer sums = resources_.scratch(bytes, queue.stream);
  args.bias_gradient = static_cast<float*>(sums.data());
  args.adds_bias_gradient = false;
  const Buffer instead = instead_of_c(key, args, queue);
  GemmChoice choice = plan.choice(0);
  if (times_ && gemm_operations(key) >= kWorthTiming) choice = time(plan, key, args, queue);
  if (!std::isfinite(choice.microseconds)) choice.microseconds = 0;  // refused; detected below
  if (!choice.fused) return choice;
  check_cuda(cudaMemsetAsync(sums.data(), 0xff, bytes, queue.native), "filling scratch");
  choice.fused =
      plan.prefer(choice) && plan.run_candidate(0, resources_, args, queue.stream, queue.native);
  if (!choice.fused) return choice;
  std::vector<float> got(expected.size());
  resources_.copy(got.data(), sums.data(), bytes, queue.native);
  resources_.wait_for(queue.native);
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (!(difference <= most)) most = difference;
    if (std::isnan(most)) break;  // a sum that was not written
  }
  choice.fused = most <= kSumsDiffer * largest;
  const std::string text = fmt::format("cuBLASLt's sums for {} are {} off where the largest is {}",
                                       to_string(key), most, largest);
  if (choice.fused)
    log::debug("{}", text);
  else
    log::once(log::Level::warn, "gemm sums off " + to_string(key),
              text + ": the bias's gradient is a pass of its own");
  return choice;
}

std::vector<float> Gemm::sums_by_pass(const GemmArgs& args, const Queue& queue) {
  const SummedColumns columns(args);
  std::vector<float> sums(static_cast<std::size_t>(columns.count));
  const Buffer there = resources_.scratch(sums.size() * sizeof(float), queue.stream);
  cuda::sum_rows(resources_, columns.data, args.input, args.k, columns.count,
                 static_cast<float*>(there.data()), false, queue.stream, queue.native);
  resources_.copy(sums.data(), there.data(), there.size(), queue.native);
  resources_.wait_for(queue.native);
  return sums;
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

// If the product reads c, makes it write to scratch memory instead, so that c stays unchanged.
Buffer Gemm::instead_of_c(const GemmKey& key, GemmArgs& args, const Queue& queue) {
  if (!key.reads_c) return {};
  const std::int64_t elements = (key.groups - 1) * key.stride_c + key.m * key.ldc;
  Buffer instead =
      resources_.scratch(static_cast<std::size_t>(elements) * size_of(args.output), queue.stream);
  check_cuda(cudaMemsetAsync(instead.data(), 0, instead.size(), queue.native), "filling scratch");
  args.c.data = instead.data();
  return instead;
}

// Overwrites c, a kept aux and a bias's gradient; the caller runs the product again afterwards.
GemmChoice Gemm::time(GemmPlan& plan, const GemmKey& key, GemmArgs args, const Queue& queue) {
  const Buffer instead = instead_of_c(key, args, queue);
  StreamTimer timer;
  const int repetitions = static_cast<int>(std::clamp(4e11 / gemm_operations(key), 2.0, 20.0));
  std::size_t best = 0;
  double first_time = 0, best_time = 0;
  for (std::size_t i = 0; i < plan.candidates(); ++i) {
    const double took = timer.measure(queue.native, repetitions, [&] {
      return plan.run_candidate(i, resources_, args, queue.stream, queue.native);
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
  const bool sums = fuses_sums(key.fusion);
  const bool asked = sums && bias_gradient_ == BiasGradient::product;
  if ((fuses_activation(key.fusion) || sums) && !asked) {
    apart = timer.measure(queue.native, repetitions, [&] {
      if (sums)
        multiply_then_sum(args, queue);
      else
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
             std::isfinite(apart) ? fmt::format("; with its end apart {:.1f} us", apart) : "");
  return choice;
}

}  // namespace

std::unique_ptr<CudaGemm> make_cuda_gemm(CudaResources& resources,
                                         const std::string& cache_directory) {
  return std::make_unique<Gemm>(resources, cache_directory);
}

}  // namespace shoal::kernels
