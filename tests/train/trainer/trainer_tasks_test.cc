// Encoders and decoders with their heads in the Trainer: the best checkpoint, early stopping, new
// heads on saved models, refusals, and masks.
#include <algorithm>
#include <filesystem>

#include "support/temporary_directory.h"
#include "train/trainer/headed_training.h"
#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/train/tasks/encoder.h"

namespace shoal {
namespace {

using test::error_of;
using test::expect_close;
using test::Head;
using test::head_arguments;
using test::head_options;
using test::Layout;
using test::run;
using test::RunOptions;
using test::tiny_encoder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

TEST(TrainerTask, RanksWithWorkersGroupByLengthAsOneDoes) {
  const TemporaryDirectory output;
  const auto losses = [&](const Layout& layout, bool grouped, std::int64_t workers) {
    auto arguments = head_arguments(output / "run", layout);
    arguments.max_steps = 6;  // two epochs of 24 samples
    arguments.group_by_length = grouped;
    arguments.dataloader_num_workers = workers;
    return run(arguments, head_options({}, layout, 24)).main.losses;
  };
  const std::vector<double> alone = losses({}, true, 0);
  expect_close(alone, losses({.rdp = 2}, true, 2), 2e-5);
  EXPECT_NE(alone, losses({}, false, 0));
}

TEST(TrainerTask, KeepsTheBestByAComputedMetric) {
  const TemporaryDirectory output;
  auto arguments = head_arguments(output / "run", {});
  arguments.max_steps = 6;
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = arguments.save_steps = 2;
  arguments.load_best_model_at_end = true;
  arguments.metric_for_best_model = "of_test";
  RunOptions options = head_options({}, {});
  int calls = 0;
  const auto prepare = options.prepare;
  options.prepare = [&](CausalLmTask& task, TrainerParts& parts) {
    prepare(task, parts);
    parts.compute_metrics = [&calls](const Predictions&) {
      return nlohmann::ordered_json{
          {"of_test", std::vector{1, 5, 3}.at(static_cast<std::size_t>(calls++))}};
    };
  };
  const auto outcome = run(arguments, options);
  EXPECT_THAT(outcome.main.messages, HasSubstr("loaded the best model"));
  EXPECT_THAT(outcome.main.messages, HasSubstr("checkpoint-4"));  // a higher metric is better
  EXPECT_FALSE(outcome.main.evaluations.at(0).contains("eval_perplexity"));

  calls = 0;
  arguments.output_dir = output / "other";
  arguments.metric_for_best_model = "f1";
  EXPECT_THAT(error_of(arguments, options),
              AllOf(HasSubstr("'f1' is not what evaluation gives"), HasSubstr("loss, of_test")));
  options.prepare = {};
  EXPECT_THAT(error_of(arguments, options), HasSubstr("'f1' is not computed"));
}

// As in transformers, saves after an evaluation that is the best yet, and not at the end.
TEST(TrainerTask, SavesOnlyTheBestCheckpoints) {
  const TemporaryDirectory output;
  auto arguments = head_arguments(output / "run", {});
  arguments.max_steps = 8;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 2;
  arguments.save_strategy = Interval::best;
  arguments.save_total_limit = 1;
  arguments.metric_for_best_model = "score";
  RunOptions options = head_options({}, {});
  std::size_t calls = 0;
  const auto prepare = options.prepare;
  options.prepare = [&](CausalLmTask& task, TrainerParts& parts) {
    prepare(task, parts);
    parts.compute_metrics = [&](const Predictions&) {
      return nlohmann::ordered_json{{"score", std::vector{1, 5, 3, 4}.at(calls++)}};
    };
  };
  const auto outcome = run(arguments, options);
  EXPECT_EQ(outcome.main.saves, (std::vector<std::int64_t>{2, 4}));
  EXPECT_FALSE(std::filesystem::exists(output / "run/checkpoint-2"));
  EXPECT_TRUE(std::filesystem::exists(output / "run/checkpoint-4"));
  calls = 0;
  arguments.output_dir = output / "other";
  arguments.load_best_model_at_end = true;
  arguments.eval_steps = 3;  // save_steps need not be a multiple
  EXPECT_THAT(run(arguments, options).main.messages,
              AllOf(HasSubstr("loaded the best model"), HasSubstr("checkpoint-6")));
}

// Patience counts evaluations, and the count survives a checkpoint.
TEST(TrainerTask, StopsWhenNoEvaluationImproves) {
  const TemporaryDirectory output;
  auto arguments = head_arguments(output / "run", {});
  arguments.max_steps = 20;
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = arguments.save_steps = 1;
  arguments.metric_for_best_model = "score";
  arguments.early_stopping_patience = 3;
  arguments.early_stopping_threshold = 0.5;
  RunOptions options = head_options({}, {});
  std::size_t calls = 0;
  std::vector<double> scores = {1, 2, 1, 3, 3.4, 3.5, 3.6, 9, 9};
  const auto prepare = options.prepare;
  options.prepare = [&](CausalLmTask& task, TrainerParts& parts) {
    prepare(task, parts);
    parts.compute_metrics = [&](const Predictions&) {
      return nlohmann::ordered_json{{"score", scores.at(calls++)}};
    };
  };
  // 3.4, 3.5 and 3.6 are each a new best value, but the improvement is too small.
  const auto outcome = run(arguments, options);
  EXPECT_EQ(outcome.main.losses.size(), 7U);
  EXPECT_THAT(outcome.main.messages, HasSubstr("stopping at step 7 of 20: eval_score has not "
                                               "become better in 3 evaluations"));

  calls = 0;
  arguments.output_dir = output / "resumed";
  options.stop_after = 6;
  EXPECT_EQ(run(arguments, options).main.losses.size(), 6U);
  arguments.resume_from_checkpoint = "true";
  options.stop_after = -1;
  EXPECT_EQ(run(arguments, options).main.losses.size(), 1U);

  calls = 0;
  arguments.output_dir = output / "late";
  arguments.resume_from_checkpoint.clear();
  arguments.eval_delay = 5;
  const auto late = run(arguments, options);
  EXPECT_EQ(late.main.losses.size(), 11U);
  EXPECT_EQ(late.main.evaluations.size(), 7U);
}

// Each train() begins with a model from model_init.
TEST(TrainerTask, ModelInitGivesEachTrainingANewModel) {
  const TemporaryDirectory output;
  auto arguments = head_arguments(output / "run", {});
  arguments.max_steps = 3;
  RunOptions options = head_options({}, {});
  std::int64_t second = 0;
  options.after = [&](Trainer& trainer, int) { second = trainer.train().global_step; };
  const auto outcome = run(arguments, options);
  ASSERT_EQ(outcome.main.losses.size(), 6U);
  EXPECT_EQ(second, 3);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(outcome.main.losses[i], outcome.main.losses[i + 3]) << "step " << i + 1;
}

TEST(TrainerTask, SavesWhatAnotherHeadBeginsWith) {
  const TemporaryDirectory output;
  auto arguments = head_arguments(output / "run", {});
  arguments.max_steps = 1;
  RunOptions options = head_options({"bert", Head::masked_lm}, {});
  options.save_model_to = output / "model";
  std::filesystem::create_directories(options.save_model_to);
  run(arguments, options);
  EXPECT_TRUE(std::filesystem::exists(output / "model/config.json"));

  RunOptions next = head_options({"bert", Head::sequence_classification}, {});
  next.initial_weights = output / "model";
  const auto outcome = run(arguments, next);
  EXPECT_THAT(outcome.main.messages,
              AllOf(HasSubstr("newly initialised: "), HasSubstr("classifier.weight"),
                    HasSubstr("not used: "), HasSubstr("cls.predictions")));
  RunOptions wrong = head_options({"roberta", Head::masked_lm}, {});
  wrong.initial_weights = output / "model";
  EXPECT_THAT(error_of(arguments, wrong), HasSubstr("roberta."));
}

TEST(TrainerTask, RefusesLabelsThatTheHeadLacks) {
  const auto memory = make_host_memory();
  const auto problem = [&](Head head, const std::vector<Sample>& samples, LabelsOf of,
                           bool regression = false) -> std::string {
    nn::EncoderConfig config = tiny_encoder("bert", head);
    if (regression) config.problem_type = "regression";
    const EncoderWithHead task(config, head);
    try {
      const Batch batch = PaddingCollator(0, 1, of).collate(samples, *memory);
      (void)task.chain_input(batch, *memory);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::vector<std::int32_t> ids = {5, 6, 7};
  EXPECT_THAT(problem(Head::sequence_classification,
                      {{.input_ids = ids, .labels = {2}}, {.input_ids = ids, .labels = {3}}},
                      LabelsOf::sample),
              HasSubstr("label 3 of row 1 is out of range: the model has labels 0 to 2"));
  EXPECT_EQ(problem(Head::sequence_classification, {{.input_ids = ids}}, LabelsOf::sample),
            "no error");
  EXPECT_THAT(
      problem(Head::question_answering, {{.input_ids = ids, .labels = {1, 3}}}, LabelsOf::sample),
      HasSubstr("the answer of row 0 is at position 3, but its batch has 3"));
  EXPECT_THAT(problem(Head::token_classification, {{.input_ids = ids, .labels = {0, -100, 9}}},
                      LabelsOf::positions),
              HasSubstr("label 9 of row 0"));
  EXPECT_THAT(problem(Head::masked_lm, {{.input_ids = ids}}, LabelsOf::positions),
              HasSubstr("its own input as labels"));
  EXPECT_THAT(
      problem(Head::sequence_classification, {{.input_ids = ids, .values = {1}}}, LabelsOf::sample),
      HasSubstr("takes labels i32 [1], but the batch has f32 [1, 1]"));
  EXPECT_THAT(problem(Head::sequence_classification, {{.input_ids = ids, .labels = {1}}},
                      LabelsOf::sample, true),
              HasSubstr("problem_type regression"));
  EXPECT_THAT(
      problem(Head::sequence_classification,
              {{.input_ids = ids, .labels = {1}, .token_type_ids = {0, 1, 2}}}, LabelsOf::sample),
      HasSubstr("token types"));
  EXPECT_THAT(
      problem(Head::sequence_classification,
              {{.input_ids = std::vector<std::int32_t>(25, 1), .labels = {1}}}, LabelsOf::sample),
      HasSubstr("25 positions, but the model 24"));
}

// A decoder needs no mask if padding only follows the texts, unless some padding counts.
TEST(NeededMask, IsEmptyIfOnlyTrailingPaddingIsHidden) {
  const auto memory = make_host_memory();
  const auto needed = [&](const std::vector<std::uint8_t>& values, std::int64_t counted) {
    Tensor mask = Tensor::empty({2, 4}, DType::u8, *memory, MemoryTag::data);
    std::copy(values.begin(), values.end(), mask.data<std::uint8_t>());
    return needed_mask(mask,
                       [&](std::int64_t row, std::int64_t t) { return row * 4 + t == counted; })
        .defined();
  };
  EXPECT_FALSE(needed({1, 1, 1, 1, 1, 1, 0, 0}, 1));
  EXPECT_FALSE(needed({0, 0, 0, 0, 1, 0, 0, 0}, 4));
  EXPECT_TRUE(needed({1, 1, 1, 1, 1, 1, 0, 0}, 6)) << "a position without text counts";
  EXPECT_TRUE(needed({1, 1, 1, 1, 0, 1, 1, 1}, -1)) << "padding comes first";
  EXPECT_TRUE(needed({1, 0, 1, 0, 1, 1, 1, 1}, -1)) << "a hole";
  EXPECT_FALSE(needed_mask({}, [](std::int64_t, std::int64_t) { return true; }).defined());
}

// Texts with padding behind them have lengths; other masks stay.
TEST(MaskAsLengths, AreOfTextsWithPaddingBehindThem) {
  const auto memory = make_host_memory();
  const auto lengths = [&](const std::vector<std::uint8_t>& values) {
    Tensor mask = Tensor::empty({2, 3}, DType::u8, *memory, MemoryTag::data);
    std::copy(values.begin(), values.end(), mask.data<std::uint8_t>());
    const Tensor made = mask_as_lengths(mask, *memory);
    if (made.dtype() != DType::i32) {
      EXPECT_EQ(made.storage(), mask.storage());
      return std::vector<std::int32_t>{};
    }
    return std::vector<std::int32_t>(made.const_data<std::int32_t>(),
                                     made.const_data<std::int32_t>() + made.count());
  };
  EXPECT_THAT(lengths({1, 1, 0, 1, 1, 1}), ::testing::ElementsAre(2, 3));
  EXPECT_THAT(lengths({0, 0, 0, 1, 0, 0}), ::testing::ElementsAre(0, 1));
  EXPECT_THAT(lengths({1, 1, 1, 0, 1, 1}), ::testing::IsEmpty()) << "padding comes first";
  EXPECT_THAT(lengths({1, 0, 1, 1, 1, 1}), ::testing::IsEmpty()) << "a hole";
  EXPECT_FALSE(mask_as_lengths({}, *memory).defined());
}

// Without the mask the losses stay the same: no position that counts attends to later padding.
TEST(NeededMask, ChangesNoLossOfADecoder) {
  const auto memory = make_host_memory();
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = test::kToyVocabulary;
  config.max_position_embeddings = config.hidden_size = 16;
  config.num_hidden_layers = config.num_attention_heads = 2;
  config.bos_token_id = config.eos_token_id = 0;
  CausalLmTask task(config);
  const auto kernels = kernels::make_cpu_kernels({.threads = 1});
  nn::DirectDispatcher dispatcher;
  nn::Context context(*kernels, *memory, dispatcher);
  context.mode = nn::Mode::evaluate;
  task.module().materialize(context, DType::f32);
  const std::vector<Sample> samples = {
      {.input_ids = {5, 6, 7, 8, 9, 3}, .labels = {5, 6, 7, 8, 9, 3}},
      {.input_ids = {4, 9, 2}, .labels = {4, 9, 2}}};
  const Batch batch = PaddingCollator(0, 1, LabelsOf::positions).collate(samples, *memory);
  ASSERT_TRUE(batch.attention_mask.defined());
  nn::ChainInput input = task.chain_input(batch, *memory);
  EXPECT_FALSE(input.key_mask.defined());
  const double without = context.read(task.loss(context, input).loss_sum);
  input.key_mask = batch.attention_mask;
  EXPECT_NEAR(without, context.read(task.loss(context, input).loss_sum), 1e-5);
}

}  // namespace
}  // namespace shoal
