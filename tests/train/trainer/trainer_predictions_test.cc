// Encoders, decoders and encoder-decoders with their heads in the Trainer. Every layout gives the
// losses of one rank, and every sample's scores once, in order; with adapters too.
#include <cmath>
#include <map>
#include <mutex>

#include "support/temporary_directory.h"
#include "train/trainer/headed_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::expect_close;
using test::Head;
using test::head_arguments;
using test::head_options;
using test::kParametersSharded;
using test::kShared;
using test::kSpeed;
using test::Layout;
using test::Outcome;
using test::run;
using test::RunOptions;
using testing::TemporaryDirectory;
using Case = test::HeadCase;
using Rows = test::HeadRows;

struct Trained {
  Outcome outcome;
  std::map<int, PredictionOutput> predicted;  // by rank
};

Trained train(const Case& test, const Layout& layout, const std::string& output,
              std::int64_t samples) {
  Trained trained;
  std::mutex mutex;
  RunOptions options = head_options(test, layout, samples);
  options.after = [&](Trainer& trainer, int rank) {
    trainer.evaluate();
    PredictionOutput predicted =
        trainer.predict(std::make_shared<Rows>(11, test.head, test.regression));
    const std::lock_guard lock(mutex);
    trained.predicted[rank] = std::move(predicted);
  };
  trained.outcome = run(head_arguments(output, layout), options);
  return trained;
}

// `relative`: compare scores relative to the sample's first position, and no classes. A softmax
// over positions ignores a constant, so the bias there has only rounding errors as its gradient,
// which AdamW scales up to full steps.
void expect_same_predictions(const Predictions& a, const Predictions& b, bool relative = false) {
  ASSERT_EQ(a.samples.size(), b.samples.size());
  ASSERT_EQ(a.classes, b.classes);
  if (!relative) {
    EXPECT_EQ(a.best_classes(), b.best_classes());
  }
  const auto classes = static_cast<std::size_t>(a.classes);
  for (std::size_t i = 0; i < a.samples.size(); ++i) {
    const std::vector<float>&ours = a.samples[i].scores, &theirs = b.samples[i].scores;
    EXPECT_EQ(a.samples[i].labels, b.samples[i].labels) << "sample " << i;
    EXPECT_EQ(a.samples[i].values.size(), b.samples[i].values.size());
    ASSERT_EQ(ours.size(), theirs.size()) << "sample " << i;
    for (std::size_t k = 0; k < ours.size(); ++k) {
      const float shift = relative ? ours[k % classes] - theirs[k % classes] : 0;
      EXPECT_NEAR(ours[k] - shift, theirs[k], 2e-4) << "sample " << i;
    }
  }
}

class TrainerTasks : public ::testing::TestWithParam<Case> {};

TEST_P(TrainerTasks, EveryLayoutTrainsAndPredictsAsOneRank) {
  const TemporaryDirectory output;
  const Case& test = GetParam();
  const Trained of_21 = train(test, {}, output / "21", 21),
                of_24 = train(test, {}, output / "24", 24);
  const Predictions& expected = of_21.predicted.at(0).predictions;
  ASSERT_EQ(expected.samples.size(), 11U);
  const Rows rows(11, test.head, test.regression);
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const Sample sample = rows.get(i);
    const SamplePrediction& of = expected.samples[static_cast<std::size_t>(i)];
    EXPECT_EQ(of.labels, sample.labels) << "sample " << i;
    EXPECT_EQ(std::ssize(of.scores),
              expected.classes * (expected.of_positions ? std::ssize(sample.input_ids) : 1));
  }
  std::vector<Layout> layouts = {Layout{.rdp = 2}, Layout{.pp = 2, .microbatches = 2},
                                 Layout{.tp = 2, .microbatches = 2, .more = kShared}};
  if (!test.is_decoder() || test.head == Head::sequence_classification)
    for (const Layout& more : {Layout{.tp = 2}, Layout{.tp = 2, .more = kSpeed},
                               Layout{.rdp = 2, .more = kParametersSharded}})
      layouts.push_back(more);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.text());
    const Trained& one = layout.rdp == 1 ? of_21 : of_24;
    const Trained other = train(test, layout, output / "other", layout.rdp == 1 ? 21 : 24);
    expect_close(one.outcome.main.losses, other.outcome.main.losses, 2e-5);
    const auto metrics = other.outcome.main.evaluations.at(0);
    const auto& before = one.outcome.main.evaluations.at(0);
    EXPECT_NEAR(metrics["eval_loss"].get<double>() / before["eval_loss"].get<double>(), 1, 2e-5);
    EXPECT_EQ(metrics["eval_accuracy"], before["eval_accuracy"]);
    EXPECT_EQ(metrics["eval_samples"], 11);
    ASSERT_EQ(std::ssize(other.predicted), layout.ranks());
    for (const auto& [rank, predicted] : other.predicted) {
      SCOPED_TRACE(fmt::format("rank {}", rank));
      expect_same_predictions(one.predicted.at(0).predictions, predicted.predictions,
                              test.head == Head::question_answering);
      EXPECT_EQ(predicted.metrics["test_accuracy"], before["eval_accuracy"]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Heads, TrainerTasks,
    ::testing::Values(
        Case{"bert"}, Case{"bert", Head::masked_lm}, Case{"roberta", Head::token_classification},
        Case{"distilbert", Head::question_answering},
        Case{"albert", Head::sequence_classification, true}, Case{"llama"},
        Case{"llama", Head::token_classification}, Case{"llama", Head::question_answering},
        Case{"gpt2", Head::sequence_classification, true}, Case{"gpt2", Head::token_classification},
        Case{"gpt2", Head::question_answering}, Case{"qwen3"}, Case{"gemma2"}, Case{"modernbert"},
        Case{"bart"}, Case{"t5"}, Case{"bart", Head::question_answering},
        Case{"t5", Head::token_classification}, Case{"t5", Head::question_answering},
        Case{.model_type = "qwen3", .lora = true}, Case{.model_type = "gemma2", .lora = true},
        Case{.model_type = "modernbert", .lora = true}, Case{.model_type = "bert", .lora = true}));

// A pipeline combined with tensor parallelism, and fewer samples than the replicas' batches hold.
TEST(TrainerTask, PredictsFewerSamplesThanRanks) {
  const TemporaryDirectory output;
  const Case test{"bert", Head::token_classification};
  const auto predict = [&](const Layout& layout) {
    std::mutex mutex;
    Predictions predictions;
    RunOptions options = head_options(test, layout);
    options.after = [&](Trainer& trainer, int rank) {
      PredictionOutput few = trainer.predict(std::make_shared<Rows>(1, test.head, false));
      const std::lock_guard lock(mutex);
      if (rank == 0) predictions = std::move(few.predictions);
    };
    auto arguments = head_arguments(output / "run", layout);
    arguments.max_steps = 1;
    run(arguments, options);
    return predictions;
  };
  const Predictions one = predict({});
  expect_same_predictions(one, predict({.rdp = 2}));
  expect_same_predictions(one, predict({.rdp = 2, .pp = 2, .microbatches = 2}));
}

}  // namespace
}  // namespace shoal
