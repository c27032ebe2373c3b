// If one rank finds its gradients invalid, all ranks skip the step.
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::Outcome;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using testing::TemporaryDirectory;

// At one update the gradients' sum of squares is NaN on this rank, as with faulty memory. The ranks
// have already summed their gradients and hold the same values.
class FaultyRule final : public kernels::OptimizerKernels {
 public:
  FaultyRule(kernels::OptimizerKernels& sound, int at) : sound_(sound), at_(at) {}
  void sum_of_squares_many(std::span<const ConstView> xs, View out, Stream stream) override {
    sound_.sum_of_squares_many(xs, out, stream);
    if (++updates_ == at_) *out.as<double>() = std::numeric_limits<double>::quiet_NaN();
  }
  void adamw(const kernels::AdamWArgs& args, Stream stream) override { sound_.adamw(args, stream); }
  void lion_many(std::span<const kernels::AdamWArgs> args, Stream stream) override {
    sound_.lion_many(args, stream);
  }
  void sgd(const kernels::SgdArgs& args, Stream stream) override { sound_.sgd(args, stream); }
  void adafactor_sums(const kernels::AdafactorArgs& args, Stream stream) override {
    sound_.adafactor_sums(args, stream);
  }
  void adafactor_moments(const kernels::AdafactorArgs& args, Stream stream) override {
    sound_.adafactor_moments(args, stream);
  }
  void adafactor_apply(const kernels::AdafactorArgs& args, Stream stream) override {
    sound_.adafactor_apply(args, stream);
  }
  void lamb_moments(const kernels::LambArgs& args, Stream stream) override {
    sound_.lamb_moments(args, stream);
  }
  void lamb_apply(const kernels::LambArgs& args, Stream stream) override {
    sound_.lamb_apply(args, stream);
  }
  void sum_of_squares(ConstView x, View out, bool accumulate, Stream stream) override {
    sound_.sum_of_squares(x, out, accumulate, stream);
  }
  bool has_non_finite(ConstView x, Stream stream) override {
    return sound_.has_non_finite(x, stream);
  }

 private:
  kernels::OptimizerKernels& sound_;
  int at_, updates_ = 0;
};

class FaultyKernels final : public kernels::Kernels {
 public:
  FaultyKernels(kernels::Kernels& sound, int at) : sound_(sound), rule_(sound.optimizer(), at) {}
  kernels::MatmulKernels& matmul() override { return sound_.matmul(); }
  kernels::ElementwiseKernels& elementwise() override { return sound_.elementwise(); }
  kernels::NormKernels& norm() override { return sound_.norm(); }
  kernels::AttentionKernels& attention() override { return sound_.attention(); }
  kernels::LossKernels& loss() override { return sound_.loss(); }
  kernels::EmbeddingKernels& embedding() override { return sound_.embedding(); }
  kernels::OptimizerKernels& optimizer() override { return rule_; }
  kernels::ReductionKernels& reduction() override { return sound_.reduction(); }
  Device device() const override { return sound_.device(); }
  Stream stream() const override { return sound_.stream(); }
  std::string describe() const override { return sound_.describe(); }

 private:
  kernels::Kernels& sound_;
  FaultyRule rule_;
};

TEST(TrainerAgreement, OneRanksFaultSkipsTheStepOfAll) {
  const TemporaryDirectory output;
  struct Case {
    const char* name;
    int ranks;
    bool f16 = false;
    nlohmann::json mp_parameters = {};
  };
  const nlohmann::json sharded = {{"ddp", true}, {"sharded_data_parallel_degree", 2}};
  const nlohmann::json pipeline = {{"ddp", true}, {"pipeline_parallel_degree", 2}};
  for (const Case& c : std::initializer_list<Case>{{"three ranks", 3},
                                                   {"f16", 2, true},
                                                   {"sharded", 4, false, sharded},
                                                   {"pipelines", 4, false, pipeline}}) {
    SCOPED_TRACE(c.name);
    auto arguments = toy_arguments(output / c.name);
    arguments.per_device_train_batch_size = 2;
    arguments.max_steps = 4;
    arguments.fp16 = c.f16;
    if (!c.mp_parameters.is_null()) arguments.mp_parameters = c.mp_parameters;
    std::array<std::unique_ptr<FaultyKernels>, 4> kernels;  // by rank
    std::array<std::int64_t, 4> done{};                     // updates, by rank
    RunOptions options{.ranks = c.ranks};
    options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
      const int rank = parts.communicator->rank();
      if (rank != c.ranks - 1) return;
      kernels[static_cast<std::size_t>(rank)] = std::make_unique<FaultyKernels>(*parts.kernels, 2);
      parts.kernels = kernels[static_cast<std::size_t>(rank)].get();
    };
    options.after = [&](Trainer& trainer, int rank) {
      done[static_cast<std::size_t>(rank)] = trainer.state().optimizer_steps;
    };
    const Outcome outcome = run(arguments, options);
    ASSERT_EQ(outcome.main.norms.size(), 4U);
    for (std::size_t step = 0; step < 4; ++step)
      EXPECT_EQ(std::isfinite(outcome.main.norms[step]), step != 1) << "step " << step + 1;
    for (int rank = 0; rank < c.ranks; ++rank)
      EXPECT_EQ(done[static_cast<std::size_t>(rank)], 3) << "rank " << rank;
  }
}

}  // namespace
}  // namespace shoal
