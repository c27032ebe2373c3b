// Encoders and decoders with their heads in the Trainer. Every layout gives the losses of one rank,
// and every sample's scores once, in order.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/decoder/trunk.h"
#include "shoal/train/tasks/decoder.h"
#include "shoal/train/tasks/encoder.h"

namespace shoal {
namespace {

using Head = nn::EncoderTask;
using test::error_of;
using test::expect_close;
using test::Outcome;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr std::int64_t kGlobalBatch = 8;
constexpr std::int32_t kLabels = 3;

nn::EncoderConfig tiny(const char* model_type, Head head) {
  nn::EncoderConfig config = nn::EncoderConfig::of(model_type);
  config.vocab_size = test::kToyVocabulary;
  config.hidden_size = 24;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.intermediate_size = 40;
  config.max_position_embeddings = 24;
  config.initializer_range = 0.2;
  config.num_labels = head == Head::question_answering ? 2 : kLabels;
  if (config.embedding_size > 0) config.embedding_size = 12;
  return config;
}

// Made-up rows whose labels can be learned from them. Lengths differ, except for answers: their
// softmaxes run over padding too, so their loss would depend on the other rows of the batch.
class Rows final : public Dataset {
 public:
  Rows(std::int64_t size, Head head, bool regression)
      : size_(size), head_(head), regression_(regression) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    std::uint32_t x = static_cast<std::uint32_t>(index) * 2654435761U + 17U;
    const int length = head_ == Head::question_answering ? 12 : 5 + static_cast<int>(x >> 8U) % 9;
    for (int t = 0; t < length; ++t) {
      x = x * 1664525U + 1013904223U;
      sample.input_ids.push_back(2 + static_cast<std::int32_t>((x >> 16U) % 59U));
      sample.token_type_ids.push_back(t > 3 ? 1 : 0);
    }
    const std::int32_t key = sample.input_ids[1];
    if (regression_) {
      sample.values = {0.01F * static_cast<float>(key), 0.5F, index % 4 == 0 ? NAN : 1.0F};
    } else if (head_ == Head::sequence_classification) {
      sample.labels = {key % kLabels};
    } else if (head_ == Head::question_answering) {
      sample.labels = {key % 5, 5 + key % 7};
    } else {
      for (int t = 0; t < length; ++t) {
        const std::int32_t id = sample.input_ids[static_cast<std::size_t>(t)];
        const bool none = (t + index) % 3 == 0;
        sample.labels.push_back(none                                  ? kIgnoreLabel
                                : head_ == Head::token_classification ? id % kLabels
                                                                      : id);
      }
    }
    return sample;
  }

 private:
  std::int64_t size_;
  Head head_;
  bool regression_;
};

struct Case {
  const char* model_type = "bert";
  Head head = Head::sequence_classification;
  bool regression = false;
  bool is_decoder() const {
    return model_type == std::string("gpt2") || model_type == std::string("llama");
  }
  friend void PrintTo(const Case& test, std::ostream* out) {
    *out << test.model_type << ", " << to_string(test.head) << (test.regression ? ", numbers" : "");
  }
};

struct Layout {
  int rdp = 1, pp = 1, tp = 1;
  std::int64_t microbatches = 1;
  nlohmann::json more = nlohmann::json::object();
  int ranks() const { return rdp * pp * tp; }
  bool on_mesh() const { return pp * tp > 1 || !more.empty(); }
  std::string text() const {
    return fmt::format("rdp {} pp {} tp {} m {} {}", rdp, pp, tp, microbatches, more.dump());
  }
};
const nlohmann::json kShared = {{"prescaled_batch", true}};
const nlohmann::json kSpeed = {{"prescaled_batch", true}, {"optimize", "speed"}};
const nlohmann::json kParametersSharded = {{"sharded_data_parallel_degree", 2},
                                           {"sdp_param_persistence_threshold", 32}};

// Some sequence models have no pad_token_id. The mask then says where rows end.
std::unique_ptr<nn::DecoderTrunk> tiny_decoder(const Case& test) {
  nn::DecoderLabels labels{.num_labels = kLabels};
  if (test.regression) labels.problem_type = "regression";
  std::optional<std::int64_t> padding;
  if (!test.regression) padding = 0;
  if (test.model_type == std::string("gpt2")) {
    nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
    config.vocab_size = test::kToyVocabulary;
    config.max_position_embeddings = config.hidden_size = 24;
    config.num_hidden_layers = 3;
    config.num_attention_heads = 4;
    config.intermediate_size = 40;
    config.initializer_range = 0.2;
    config.pad_token_id = padding;
    config.labels = labels;
    return std::make_unique<nn::DecoderTrunk>(config);
  }
  nn::DecoderConfig config = nn::DecoderConfig::of("llama");
  config.vocab_size = test::kToyVocabulary;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.max_position_embeddings = 24;
  config.initializer_range = 0.2;
  config.attention_dropout = 0.1;
  config.pad_token_id = padding;
  config.labels = labels;
  return std::make_unique<nn::DecoderTrunk>(config);
}

std::unique_ptr<Task> make_toy_task(const Case& test) {
  if (test.is_decoder()) {
    const nn::DecoderHead head =
        test.head == Head::question_answering     ? nn::DecoderHead::question_answering
        : test.head == Head::token_classification ? nn::DecoderHead::token_classification
                                                  : nn::DecoderHead::sequence_classification;
    return std::make_unique<DecoderWithHead>(
        std::make_unique<nn::HeadedDecoder>(tiny_decoder(test), head));
  }
  nn::EncoderConfig config = tiny(test.model_type, test.head);
  if (test.regression) config.problem_type = "regression";
  return std::make_unique<EncoderWithHead>(config, test.head);
}

// The share of labels that equal the best class, by position or by sample.
nlohmann::ordered_json right_answers(const Predictions& predictions) {
  const std::vector<std::int64_t> best = predictions.best_classes();
  std::vector<std::int32_t> labels;
  for (const SamplePrediction& one : predictions.samples)
    labels.insert(labels.end(), one.labels.begin(), one.labels.end());
  double right = 0, all = 0;
  for (std::size_t i = 0; i < labels.size() && labels.size() == best.size(); ++i) {
    if (labels[i] < 0) continue;
    right += best[i] == labels[i] ? 1 : 0;
    all += 1;
  }
  return {{"accuracy", right / std::max(all, 1.0)},
          {"samples", static_cast<std::int64_t>(predictions.samples.size())}};
}

struct Trained {
  Outcome outcome;
  std::map<int, PredictionOutput> predicted;  // by rank
};

TrainingArguments arguments_for(const std::string& output, const Layout& layout) {
  TrainingArguments a = toy_arguments(output);
  a.max_steps = 4;
  const bool shares = layout.tp > 1 && layout.more.value("prescaled_batch", false);
  a.per_device_train_batch_size = kGlobalBatch / (layout.rdp * (shares ? 1 : layout.tp));
  if (!layout.on_mesh()) return a;
  a.mp_parameters = layout.more;
  a.mp_parameters["ddp"] = true;
  a.mp_parameters["pipeline_parallel_degree"] = layout.pp;
  a.mp_parameters["tensor_parallel_degree"] = layout.tp;
  a.mp_parameters["microbatches"] = layout.microbatches;
  return a;
}

// With 21 samples an epoch's last batches are short. Replicas wrap around the list, so they have
// 24. Evaluation has 11 samples, in batches of 3 a device.
RunOptions options_for(const Case& test, const Layout& layout, std::int64_t samples = 21) {
  RunOptions options{.ranks = layout.ranks()};
  options.prepare = [test, samples](CausalLmTask&, TrainerParts& parts) {
    parts.task = nullptr;
    parts.model_init = [test] { return make_toy_task(test); };
    parts.compute_metrics = right_answers;
    const bool of_positions =
        test.head == Head::masked_lm || test.head == Head::token_classification;
    // Two of the layouts split each sequence over two ranks.
    parts.collator =
        std::make_shared<PaddingCollator>(test.model_type == std::string("roberta") ? 1 : 0, 2,
                                          of_positions ? LabelsOf::positions : LabelsOf::sample);
    parts.train_dataset = std::make_shared<Rows>(samples, test.head, test.regression);
    parts.eval_dataset = std::make_shared<Rows>(11, test.head, test.regression);
  };
  return options;
}

Trained train(const Case& test, const Layout& layout, const std::string& output,
              std::int64_t samples) {
  Trained trained;
  std::mutex mutex;
  RunOptions options = options_for(test, layout, samples);
  options.after = [&](Trainer& trainer, int rank) {
    trainer.evaluate();
    PredictionOutput predicted =
        trainer.predict(std::make_shared<Rows>(11, test.head, test.regression));
    const std::lock_guard lock(mutex);
    trained.predicted[rank] = std::move(predicted);
  };
  trained.outcome = run(arguments_for(output, layout), options);
  return trained;
}

// `relative`: compare scores relative to the sample's first position. A softmax over positions
// ignores a constant, so the bias there has only rounding errors as its gradient, which AdamW
// scales up to full steps.
void expect_same_predictions(const Predictions& a, const Predictions& b, bool relative = false) {
  ASSERT_EQ(a.samples.size(), b.samples.size());
  ASSERT_EQ(a.classes, b.classes);
  EXPECT_EQ(a.best_classes(), b.best_classes());
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

INSTANTIATE_TEST_SUITE_P(Heads, TrainerTasks,
                         ::testing::Values(Case{"bert"}, Case{"bert", Head::masked_lm},
                                           Case{"roberta", Head::token_classification},
                                           Case{"distilbert", Head::question_answering},
                                           Case{"albert", Head::sequence_classification, true},
                                           Case{"llama"}, Case{"llama", Head::token_classification},
                                           Case{"llama", Head::question_answering},
                                           Case{"gpt2", Head::sequence_classification, true},
                                           Case{"gpt2", Head::token_classification},
                                           Case{"gpt2", Head::question_answering}));

// A pipeline combined with tensor parallelism, and fewer samples than the replicas' batches hold.
TEST(TrainerTask, PredictsFewerSamplesThanRanks) {
  const TemporaryDirectory output;
  const Case test{"bert", Head::token_classification};
  const auto predict = [&](const Layout& layout) {
    std::mutex mutex;
    Predictions predictions;
    RunOptions options = options_for(test, layout);
    options.after = [&](Trainer& trainer, int rank) {
      PredictionOutput few = trainer.predict(std::make_shared<Rows>(1, test.head, false));
      const std::lock_guard lock(mutex);
      if (rank == 0) predictions = std::move(few.predictions);
    };
    auto arguments = arguments_for(output / "run", layout);
    arguments.max_steps = 1;
    run(arguments, options);
    return predictions;
  };
  const Predictions one = predict({});
  expect_same_predictions(one, predict({.rdp = 2}));
  expect_same_predictions(one, predict({.rdp = 2, .pp = 2, .microbatches = 2}));
}

TEST(TrainerTask, RanksWithWorkersGroupByLengthAsOneDoes) {
  const TemporaryDirectory output;
  const auto losses = [&](const Layout& layout, bool grouped, std::int64_t workers) {
    auto arguments = arguments_for(output / "run", layout);
    arguments.max_steps = 6;  // two epochs of 24 samples
    arguments.group_by_length = grouped;
    arguments.dataloader_num_workers = workers;
    return run(arguments, options_for({}, layout, 24)).main.losses;
  };
  const std::vector<double> alone = losses({}, true, 0);
  expect_close(alone, losses({.rdp = 2}, true, 2), 2e-5);
  EXPECT_NE(alone, losses({}, false, 0));
}

TEST(TrainerTask, KeepsTheBestByAComputedMetric) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output / "run", {});
  arguments.max_steps = 6;
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = arguments.save_steps = 2;
  arguments.load_best_model_at_end = true;
  arguments.metric_for_best_model = "of_test";
  RunOptions options = options_for({}, {});
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
  auto arguments = arguments_for(output / "run", {});
  arguments.max_steps = 8;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 2;
  arguments.save_strategy = Interval::best;
  arguments.save_total_limit = 1;
  arguments.metric_for_best_model = "score";
  RunOptions options = options_for({}, {});
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
  auto arguments = arguments_for(output / "run", {});
  arguments.max_steps = 20;
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = arguments.save_steps = 1;
  arguments.metric_for_best_model = "score";
  arguments.early_stopping_patience = 3;
  arguments.early_stopping_threshold = 0.5;
  RunOptions options = options_for({}, {});
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
  auto arguments = arguments_for(output / "run", {});
  arguments.max_steps = 3;
  RunOptions options = options_for({}, {});
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
  auto arguments = arguments_for(output / "run", {});
  arguments.max_steps = 1;
  RunOptions options = options_for({"bert", Head::masked_lm}, {});
  options.save_model_to = output / "model";
  std::filesystem::create_directories(options.save_model_to);
  run(arguments, options);
  EXPECT_TRUE(std::filesystem::exists(output / "model/config.json"));

  RunOptions next = options_for({"bert", Head::sequence_classification}, {});
  next.initial_weights = output / "model";
  const auto outcome = run(arguments, next);
  EXPECT_THAT(outcome.main.messages,
              AllOf(HasSubstr("newly initialised: "), HasSubstr("classifier.weight"),
                    HasSubstr("not used: "), HasSubstr("cls.predictions")));
  RunOptions wrong = options_for({"roberta", Head::masked_lm}, {});
  wrong.initial_weights = output / "model";
  EXPECT_THAT(error_of(arguments, wrong), HasSubstr("roberta."));
}

TEST(TrainerTask, RefusesLabelsThatTheHeadLacks) {
  const auto memory = make_host_memory();
  const auto problem = [&](Head head, const std::vector<Sample>& samples, LabelsOf of,
                           bool regression = false) -> std::string {
    nn::EncoderConfig config = tiny("bert", head);
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
