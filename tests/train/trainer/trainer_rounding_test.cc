// Without f32 masters, bf16 training needs stochastic rounding.
#include <numeric>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::error_of;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Without masters: each update rounds to the nearest bf16.
class NearestRule final : public kernels::OptimizerKernels {
 public:
  explicit NearestRule(kernels::OptimizerKernels& sound) : sound_(sound) {}
  void adamw(const kernels::AdamWArgs& args, Stream stream) override {
    sound_.adamw(args, stream);
    auto* const master = args.master.as<float>();
    for (std::int64_t i = 0; i < args.master.shape.count(); ++i)
      master[i] = static_cast<float>(args.parameter.as<bfloat16>()[i]);
  }
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
};

class NearestKernels final : public kernels::Kernels {
 public:
  explicit NearestKernels(kernels::Kernels& sound) : sound_(sound), rule_(sound.optimizer()) {}
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
  NearestRule rule_;
};

// Each step changes a weight by 4e-6. Weights near 0.02 have bf16 neighbours at a distance of 1e-4,
// and 400 steps move a weight by a fortieth of the weights' spread.
TEST(StochasticRounding, LearnsWithUpdatesThatRoundingToNearestLoses) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.bf16 = true;
  arguments.max_steps = 400;
  arguments.lr_scheduler_type = "constant";
  const auto end = [&](double rate, bool stochastic, const RunOptions& options = {}) {
    arguments.learning_rate = rate;
    arguments.stochastic_rounding = stochastic;
    const std::vector<double> losses = run(arguments, options).main.losses;
    return std::accumulate(losses.end() - 20, losses.end(), 0.0) / 20;
  };
  std::unique_ptr<NearestKernels> kernels;
  RunOptions to_nearest;
  to_nearest.prepare = [&](CausalLmTask&, TrainerParts& parts) {
    kernels = std::make_unique<NearestKernels>(*parts.kernels);
    parts.kernels = kernels.get();
  };
  const double begun = end(0, false), rate = 4e-6;
  const double masters = begun - end(rate, false), stochastic = begun - end(rate, true),
               nearest = begun - end(rate, false, to_nearest);
  EXPECT_GT(masters, 0.01) << "there is something to learn";
  EXPECT_GT(stochastic, 0.8 * masters);
  EXPECT_LT(nearest, 0.3 * masters);
  RecordProperty("learned", fmt::format("{:.4f} with masters, {:.4f} stochastic, {:.4f} nearest",
                                        masters, stochastic, nearest));
}

TEST(StochasticRounding, IsReportedAndRefusedByName) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  arguments.stochastic_rounding = true;
  EXPECT_THAT(error_of(arguments),
              HasSubstr("stochastic_rounding is true, but parameters are f32"));
  arguments.fp16 = true;
  EXPECT_THAT(
      error_of(arguments),
      HasSubstr("stochastic_rounding is true, but parameters are f16, whose masters are f32"));
  arguments.fp16 = false;
  arguments.bf16 = true;
  arguments.optim = "sgd";
  EXPECT_THAT(error_of(arguments), HasSubstr("stochastic_rounding is true, but optim is sgd"));
  arguments.optim = "adamw";
  EXPECT_THAT(run(arguments, {.header = true}).header,
              HasSubstr("bf16 rounded stochastically, no masters"));
}

}  // namespace
}  // namespace shoal
