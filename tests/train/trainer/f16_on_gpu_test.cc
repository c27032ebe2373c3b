// f16 on an emulated GPU (tests/support/emulated_gpu): GPT-2 and BERT compared with f32, overflows,
// and what a V100 refuses. ctest runs it again as a V100 (SHOAL_EMULATED_GPU_CAPABILITY=7.0).
#include <cmath>
#include <cstdlib>
#include <list>
#include <mutex>
#include <string_view>

#include "support/temporary_directory.h"
#include "train/trainer/gpu_fixture.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/tasks/encoder.h"

namespace shoal {
namespace {

using test::error_of;
using test::expect_close;
using test::GpuFixture;
using test::Outcome;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

bool plays_v100() {
  const char* const capability = std::getenv("SHOAL_EMULATED_GPU_CAPABILITY");
  return capability != nullptr && std::string_view(capability) == "7.0";
}

class F16OnGpu : public ::testing::Test {
 protected:
  // Options for one rank. The fixtures must outlive the Trainers that run() makes.
  RunOptions on_gpu(RunOptions options = {}) {
    options.samples = 24;
    options.prepare = [this, before = options.prepare](CausalLmTask& task, TrainerParts& parts) {
      if (before) before(task, parts);
      const std::lock_guard lock(mutex_);
      GpuFixture& room = rooms_.emplace_back();
      room.give(parts);
      collectives::CommunicatorOptions on_device;
      on_device.stream = room.kernels->stream();
      parts.communicator =
          communicators_.emplace_back(collectives::make_communicator({}, *store_, on_device)).get();
    };
    return options;
  }

  TrainingArguments arguments(bool f16, std::int64_t steps) const {
    auto a = toy_arguments(output_ / "run");
    a.per_device_train_batch_size = 4;
    a.max_steps = steps;
    a.logging_steps = 1;
    a.warmup_steps = 2;
    a.logging_nan_inf_filter = false;
    a.fp16 = f16;
    return a;
  }

  TemporaryDirectory output_;

 private:
  std::mutex mutex_;
  std::shared_ptr<Store> store_ = make_hash_store();
  std::list<GpuFixture> rooms_;
  std::list<std::unique_ptr<collectives::Communicator>> communicators_;
};

TEST_F(F16OnGpu, Gpt2LearnsAsInF32) {
  RunOptions grouped;
  grouped.config.attention_dropout = 0.2;
  const Outcome narrow = run(arguments(true, 6), on_gpu(grouped)),
                wide = run(arguments(false, 6), on_gpu(grouped));
  RunOptions host = grouped;
  host.samples = 24;
  const Outcome cpu = run(arguments(true, 6), host);
  ASSERT_EQ(narrow.main.losses.size(), 6U);
  expect_close(wide.main.losses, narrow.main.losses, 3e-3);
  expect_close(cpu.main.losses, narrow.main.losses, 3e-3);
  expect_close(cpu.main.norms, narrow.main.norms, 2e-2);
  EXPECT_NE(narrow.main.losses.front(), narrow.main.losses.back());
  EXPECT_EQ(narrow.main.logs[0]["loss_scale"], 65536);
}

TEST_F(F16OnGpu, OverflowsAreSkippedAndHalveTheScale) {
  auto a = arguments(true, 10);
  a.grad_scaler_init_scale = 1 << 25;
  a.grad_scaler_growth_interval = 3;
  a.gradient_accumulation_steps = 2;
  const Outcome outcome = run(a, on_gpu());
  double scale = a.grad_scaler_init_scale;
  int good = 0, skipped = 0;
  for (std::size_t i = 0; i < 10; ++i) {
    if (!std::isfinite(outcome.main.norms[i]))
      scale /= 2, good = 0, ++skipped;
    else if (++good % 3 == 0)
      scale *= 2;
    EXPECT_EQ(outcome.main.logs[i]["loss_scale"], scale) << "step " << i + 1;
    EXPECT_TRUE(std::isfinite(outcome.main.losses[i]));
  }
  EXPECT_GE(skipped, 1);
  EXPECT_LE(skipped, 8);
  EXPECT_EQ(outcome.main.logs[0]["learning_rate"], outcome.main.logs[1]["learning_rate"])
      << "the first was skipped";
}

// Every batch has the same number of targets, so all steps have the same shape.
class Even final : public Dataset {
 public:
  std::int64_t size() const override { return 24; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    for (std::int64_t t = 0; t < 10; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>((7 * index + t * t) % 59));
    sample.labels = sample.input_ids;
    return sample;
  }
};

// A captured step reads the scale from memory, so its graph need not be captured again.
TEST_F(F16OnGpu, CapturedStepsFollowTheScale) {
  auto a = arguments(true, 10);
  a.grad_scaler_init_scale = 4096;
  a.grad_scaler_growth_interval = 2;
  a.step_capture = StepCaptureMode::off;
  RunOptions options;
  options.prepare = [](CausalLmTask&, TrainerParts& parts) {
    parts.train_dataset = std::make_shared<Even>();
  };
  const Outcome plain = run(a, on_gpu(options));
  a.step_capture = StepCaptureMode::on;
  const Outcome captured = run(a, on_gpu(options));
  EXPECT_EQ(plain.main.losses, captured.main.losses);
  EXPECT_EQ(plain.main.norms, captured.main.norms);
  EXPECT_EQ(captured.main.logs[9]["loss_scale"], 4096 * 32);
  EXPECT_THAT(captured.main.messages, HasSubstr("step capture: a graph"));
}

// One run does steps 1 to 4, and a resumed run does steps 5 to 8. Some of them overflow.
TEST_F(F16OnGpu, ResumesToTheBit) {
  for (const bool mesh : {false, true}) {
    SCOPED_TRACE(mesh ? "mesh" : "data_parallel");
    auto a = arguments(true, 8);
    a.grad_scaler_init_scale = 1 << 25;
    a.grad_scaler_growth_interval = 3;
    if (mesh) a.mp_parameters = {{"ddp", true}, {"microbatches", 2}};
    const auto went = test::stop_and_go_on(a, on_gpu(), output_ / (mesh ? "mesh" : "data"));
    EXPECT_EQ(went.rest.main.losses.size(), 4U);
    EXPECT_FALSE(std::isfinite(went.whole.main.norms.front()));
  }
}

// Rows of five to nine ids, with a class or two numbers that follow from one of the ids.
class Rows final : public Dataset {
 public:
  explicit Rows(bool regression) : regression_(regression) {}
  std::int64_t size() const override { return 24; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    std::uint32_t x = static_cast<std::uint32_t>(index) * 2654435761U + 17U;
    const int length = 5 + static_cast<int>(x >> 8U) % 5;
    for (int t = 0; t < length; ++t) {
      x = x * 1664525U + 1013904223U;
      sample.input_ids.push_back(2 + static_cast<std::int32_t>((x >> 16U) % 59U));
      sample.token_type_ids.push_back(t > 3 ? 1 : 0);
    }
    const std::int32_t key = sample.input_ids[1];
    if (regression_)
      sample.values = {0.01F * static_cast<float>(key), 0.5F};
    else
      sample.labels = {key % 2};
    return sample;
  }

 private:
  bool regression_;
};

TEST_F(F16OnGpu, BertLearnsAsInF32) {
  for (const bool regression : {false, true}) {
    nn::EncoderConfig config = nn::EncoderConfig::of("bert");
    config.vocab_size = test::kToyVocabulary;
    config.hidden_size = 24;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 3;
    config.intermediate_size = 40;
    config.max_position_embeddings = 16;
    config.initializer_range = 0.2;
    config.num_labels = 2;
    if (regression) config.problem_type = "regression";
    std::list<EncoderWithHead> tasks;
    RunOptions options;
    options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
      parts.task = &tasks.emplace_back(config, nn::EncoderTask::sequence_classification);
      parts.train_dataset = std::make_shared<Rows>(regression);
      parts.collator = std::make_shared<PaddingCollator>(0, 1, LabelsOf::sample);
    };
    const Outcome narrow = run(arguments(true, 5), on_gpu(options)),
                  wide = run(arguments(false, 5), on_gpu(options));
    ASSERT_EQ(narrow.main.losses.size(), 5U);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(std::isfinite(narrow.main.norms[i]));
      EXPECT_NEAR(narrow.main.losses[i], wide.main.losses[i], 1e-2 * (1 + wide.main.losses[i]));
    }
    EXPECT_NE(narrow.main.losses.front(), narrow.main.losses.back());
  }
}

TEST_F(F16OnGpu, Bf16IsRefusedIfTheGpuHasNone) {
  auto a = arguments(false, 1);
  a.bf16 = true;
  if (plays_v100())
    EXPECT_THAT(error_of(a, on_gpu()),
                AllOf(HasSubstr("bf16 needs compute capability 8.0, and cuda:0 has 7.0"),
                      HasSubstr("--fp16 true")));
  else
    EXPECT_EQ(error_of(a, on_gpu()), "no error");
}

TEST_F(F16OnGpu, ABinaryWithoutCodeForTheGpuIsRefused) {
  const auto said = [](const char* architectures) {
    ::setenv("SHOAL_EMULATED_GPU_ARCHITECTURES", architectures, 1);
    std::string text = "no error";
    try {
      kernels::make_cuda_kernels(
          {.device = Device::cuda(0), .memory = nullptr, .cache_directory = {}});
    } catch (const Error& error) {
      text = error.what();
    }
    ::unsetenv("SHOAL_EMULATED_GPU_ARCHITECTURES");
    return text;
  };
  EXPECT_EQ(said("70-real 90a-real"), "no error");
  EXPECT_THAT(said("80-real 86-real"),
              AllOf(HasSubstr(plays_v100() ? "has compute capability 7.0" : "9.0"),
                    HasSubstr("it was compiled for 80-real 86-real"),
                    HasSubstr(plays_v100() ? "-DCMAKE_CUDA_ARCHITECTURES=70-real and CUDA 12"
                                           : "-DCMAKE_CUDA_ARCHITECTURES=90a-real")));
}

}  // namespace
}  // namespace shoal
