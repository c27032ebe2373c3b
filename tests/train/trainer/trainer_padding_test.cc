// Padding that an encoder's layers leave out: what the head of the log says of it, and what MFU
// counts.
#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/train/tasks/encoder.h"
#include "shoal/train/trainer/microbatches.h"

namespace shoal {
namespace {

using test::RunOptions;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

constexpr std::int64_t kBatch = 4, kLongest = 12;

// One text of 12 tokens and three of 3.
class Texts final : public Dataset {
 public:
  std::int64_t size() const override { return kBatch; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    for (std::int32_t i = 0; i < (index == 0 ? kLongest : 3); ++i)
      sample.input_ids.push_back(2 + i);
    sample.labels = {static_cast<std::int32_t>(index % 2)};
    return sample;
  }
};

std::unique_ptr<Task> classifier(nn::EncoderTask head) {
  nn::EncoderConfig config = nn::EncoderConfig::of("bert");
  config.vocab_size = test::kToyVocabulary;
  config.hidden_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 40;
  config.max_position_embeddings = 24;
  config.num_labels = 2;
  return std::make_unique<EncoderWithHead>(config, head);
}

struct Trained {
  std::string header;
  std::vector<double> computed;  // share of the tokens that MFU counts, after each training
};

Trained train(TrainingArguments arguments, int times = 1) {
  arguments.max_steps = 3;
  arguments.per_device_train_batch_size = kBatch;
  Trained trained;
  RunOptions options{.header = true};
  options.prepare = [](CausalLmTask&, TrainerParts& parts) {
    parts.task = nullptr;
    parts.model_init = [] { return classifier(nn::EncoderTask::sequence_classification); };
    parts.collator = std::make_shared<PaddingCollator>(0, 1, LabelsOf::sample);
    parts.train_dataset = std::make_shared<Texts>();
  };
  options.after = [&](Trainer& trainer, int) {
    trainer.set_peak(1, 1);
    for (int time = 0; time < times; ++time) {
      if (time > 0) trainer.train();
      const Trainer::Speed speed = trainer.speed();
      trained.computed.push_back(speed.mfu / speed.tokens_per_second);
    }
  };
  trained.header = test::run(arguments, options).header;
  return trained;
}

// 21 visible positions of 48, which are filled up to 32.
TEST(TrainerPadding, IsLeftOutAndNotCountedByMfu) {
  const TemporaryDirectory output;
  const Trained trained = train(test::toy_arguments(output / "run"), 2);
  EXPECT_THAT(trained.header, HasSubstr("padding: layers leave it out"));
  ASSERT_EQ(trained.computed.size(), 2);
  for (const double share : trained.computed) EXPECT_NEAR(share, 32.0 / 48, 1e-9);
}

TEST(TrainerPadding, IsComputedByCapturedSteps) {
  const TemporaryDirectory output;
  TrainingArguments arguments = test::toy_arguments(output / "run");
  arguments.step_capture = StepCaptureMode::on;
  const Trained trained = train(arguments);
  EXPECT_THAT(trained.header, HasSubstr("layers compute padding, because step_capture is on"));
  EXPECT_THAT(trained.header, Not(HasSubstr("leave it out")));
  EXPECT_NEAR(trained.computed.at(0), 1, 1e-9);
}

// Without a granularity, with a mask that is no prefix, and if little is saved, nothing is left
// out.
TEST(CutBatches, LeaveOutPaddingBehindTexts) {
  const auto memory = make_host_memory();
  const auto task = classifier(nn::EncoderTask::sequence_classification);
  const Texts texts;
  std::vector<Sample> samples;
  for (std::int64_t i = 0; i < texts.size(); ++i) samples.push_back(texts.get(i));
  const PaddingCollator collator(0, 1, LabelsOf::sample);
  const auto visible = [&](std::int64_t granularity) {
    const Batch batch = collator.collate(samples, *memory);
    return cut_batches(*task, {&batch, 1}, 0, {}, {.visible_granularity = granularity}, *memory)
        .at(0)
        .input.visible;
  };
  EXPECT_EQ(visible(16).rows.count(), 32);
  EXPECT_EQ(visible(16).places.shape(), (Shape{kBatch, kLongest}));
  EXPECT_FALSE(visible(0).defined());
  EXPECT_FALSE(visible(44).defined());
  samples[0].attention_mask = {1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_FALSE(visible(16).defined());
}

}  // namespace
}  // namespace shoal
