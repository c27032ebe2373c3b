#include <algorithm>
#include <atomic>
#include <cmath>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cpu/adafactor.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/optimizer_ranges.h"
#include "shoal/kernels/cpu/scratch.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {

AdamWFactors::AdamWFactors(const AdamWArgs& args) {
  const double step = args.state->step, rate = args.state->learning_rate;
  const double correction1_exact = 1 - std::pow(args.beta1, step);
  const double correction2_exact = 1 - std::pow(args.beta2, step);
  gradient_scale = args.state->gradient_scale;
  learning_rate = args.state->learning_rate;
  decay = static_cast<float>(1 - rate * args.weight_decay);
  one_minus_beta1 = static_cast<float>(1 - args.beta1);
  beta2 = static_cast<float>(args.beta2);
  one_minus_beta2 = static_cast<float>(1 - args.beta2);
  step_size = static_cast<float>(rate / correction1_exact);
  correction2 = static_cast<float>(std::sqrt(correction2_exact));
  epsilon = static_cast<float>(args.epsilon);
  inverse_correction1 = static_cast<float>(1 / correction1_exact);
  inverse_correction2 = static_cast<float>(1 / correction2_exact);
  weight_decay = static_cast<float>(args.weight_decay);
}

SgdFactors::SgdFactors(const SgdArgs& args)
    : gradient_scale(args.state->gradient_scale),
      weight_decay(static_cast<float>(args.weight_decay)),
      momentum(static_cast<float>(args.momentum)),
      one_minus_dampening(static_cast<float>(1 - args.dampening)),
      learning_rate(args.state->learning_rate),
      first(args.state->step == 1) {}

namespace {

constexpr std::int64_t kGrain = 16384;  // elements worth a thread
constexpr std::int64_t kBlock = 8192;   // elements of one partial sum, for any number of threads

class CpuOptimizer final : public OptimizerKernels {
 public:
  explicit CpuOptimizer(const CpuResources& resources)
      : threads_(resources.threads),
        scratch_(*resources.memory),
        adafactor_(resources.threads, *resources.memory) {}

  void adamw(const AdamWArgs& args, Stream) override {
    check::adamw("adamw", args);
    if (args.state->skip) return;
    const AdamWFactors factors(args);
    over(args.master,
         [&](std::int64_t first, std::int64_t count) { adamw_range(args, factors, first, count); });
  }

  void lion_many(std::span<const AdamWArgs> all, Stream) override {
    check::lion(all);
    for (const AdamWArgs& args : all) {
      if (args.state->skip) return;
      const AdamWFactors factors(args);
      over(args.master, [&](std::int64_t first, std::int64_t count) {
        lion_range(args, factors, first, count);
      });
    }
  }

  void sgd(const SgdArgs& args, Stream) override {
    check::sgd(args);
    if (args.state->skip) return;
    const SgdFactors factors(args);
    over(args.master,
         [&](std::int64_t first, std::int64_t count) { sgd_range(args, factors, first, count); });
  }

  void lamb_moments(const LambArgs& args, Stream) override {
    check::lamb(args);
    auto* squares = args.squares.as<double>();
    for (const AdamWArgs& tensor : args.tensors) {
      if (tensor.state->skip) return;
      const AdamWFactors factors(tensor);
      const std::int64_t count = tensor.master.shape.count();
      // The directions of only one block are in memory at a time.
      *squares++ = squares_of(tensor.master);
      *squares++ = sum_of_blocks(count, [&](std::int64_t first, std::int64_t some) {
        float direction[kBlock];
        lamb_moments_range(tensor, factors, first, some, direction);
        return sum_of_squares_range(ConstView(direction, Shape{some}, DType::f32), 0, some);
      });
    }
  }

  void lamb_apply(const LambArgs& args, Stream) override {
    check::lamb(args);
    const auto* squares = args.squares.as<double>();
    for (const AdamWArgs& tensor : args.tensors) {
      if (tensor.state->skip) return;
      const AdamWFactors factors(tensor);
      const double weight = std::sqrt(*squares++), update = std::sqrt(*squares++);
      const double trust =
          weight > 0 && update > 0 ? std::min(weight / update, args.max_trust_ratio) : 1;
      const auto rate = static_cast<float>(trust * tensor.state->learning_rate);
      over(tensor.master, [&](std::int64_t first, std::int64_t count) {
        lamb_apply_range(tensor, factors, rate, first, count);
      });
    }
  }

  void adafactor_sums(const AdafactorArgs& args, Stream) override {
    check::adafactor(args);
    adafactor_.sums(args);
  }
  void adafactor_moments(const AdafactorArgs& args, Stream) override {
    check::adafactor(args);
    adafactor_.moments(args);
  }
  void adafactor_apply(const AdafactorArgs& args, Stream) override {
    check::adafactor(args);
    adafactor_.apply(args);
  }

  void sum_of_squares(ConstView x, View out, bool accumulate, Stream) override {
    check::sum_of_squares(x, out);
    const double sum = squares_of(x);
    auto& total = *static_cast<double*>(out.data);
    total = accumulate ? total + sum : sum;
  }

  bool has_non_finite(ConstView x, Stream) override {
    check::training_float("has_non_finite", "x", x);
    std::atomic<bool> found{false};
    over(x, [&](std::int64_t first, std::int64_t count) {
      // Works block by block, so that all threads stop soon after one finds such a value.
      for (std::int64_t i = 0; i < count && !found.load(std::memory_order_relaxed); i += kBlock)
        if (non_finite_range(x, first + i, std::min(kBlock, count - i)))
          found.store(true, std::memory_order_relaxed);
    });
    return found.load();
  }

 private:
  template <class Body>
  void over(const ConstView& x, const Body& body) const {
    parallel_for(threads_, x.shape.count(), kGrain,
                 [&](std::int64_t begin, std::int64_t end) { body(begin, end - begin); });
  }

  double squares_of(const ConstView& x) {
    return sum_of_blocks(x.shape.count(), [&](std::int64_t first, std::int64_t some) {
      return sum_of_squares_range(x, first, some);
    });
  }

  // Adds up sum(first, some) over blocks, in block order.
  template <class Sum>
  double sum_of_blocks(std::int64_t count, const Sum& sum) {
    const std::int64_t blocks = (count + kBlock - 1) / kBlock;
    if (blocks == 0) return 0;
    double* partial = scratch_.of<double>(blocks);
    parallel_for(threads_, blocks, kGrain / kBlock, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b)
        partial[b] = sum(b * kBlock, std::min(kBlock, count - b * kBlock));
    });
    double all = 0;
    for (std::int64_t b = 0; b < blocks; ++b) all += partial[b];
    return all;
  }

  int threads_;
  Scratch scratch_;
  CpuAdafactor adafactor_;
};

}  // namespace

std::unique_ptr<OptimizerKernels> make_cpu_optimizer(const CpuResources& resources) {
  return std::make_unique<CpuOptimizer>(resources);
}

}  // namespace shoal::kernels
