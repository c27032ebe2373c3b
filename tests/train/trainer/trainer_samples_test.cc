// Texts that a causal language model generates while it trains: samples.jsonl has those of each
// evaluation once, in every layout that can generate, and after a resume.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "support/temporary_directory.h"
#include "train/trainer/mesh_layout.h"
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/models/generate.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

using test::bytes_of;
using test::error_of;
using test::kOptimizerSharded;
using test::kParametersSharded;
using test::kShared;
using test::kSpeed;
using test::Layout;
using test::Outcome;
using test::run;
using test::run_on;
using test::RunOptions;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;
namespace fs = std::filesystem;

const std::vector<std::vector<std::int32_t>> kPrompts = {{7}, {3, 1, 4, 1, 5}};

std::string ids_as_text(std::span<const std::int32_t> ids) {
  return fmt::format("{}", fmt::join(ids, " "));
}

SampleTexts samples_of(const std::vector<std::vector<std::int32_t>>& prompts) {
  SampleTexts samples;
  for (const auto& ids : prompts)
    samples.prompts.push_back({.text = ids_as_text(ids), .ids = ids, .reference = "known"});
  samples.options = {.max_new_tokens = 6, .do_sample = true};
  samples.text_of = [](std::span<const std::int32_t>, std::span<const std::int32_t> ids) {
    return ids_as_text(ids);
  };
  return samples;
}

RunOptions sampling(const SampleTexts& samples = samples_of(kPrompts)) {
  RunOptions options{.eval_samples = 9};
  options.prepare = [samples](CausalLmTask&, TrainerParts& parts) { parts.samples = samples; };
  return options;
}

TrainingArguments arguments_for(const std::string& output) {
  TrainingArguments arguments = test::toy_arguments(output);
  arguments.max_steps = 20;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 8;
  return arguments;
}

std::string file_of(const std::string& output) { return output + "/samples.jsonl"; }

std::vector<nlohmann::json> lines_of(const std::string& output) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(bytes_of(file_of(output)));
  for (std::string line; std::getline(text, line);)
    lines.push_back(json_if_valid(line).value_or(nullptr));
  return lines;
}

std::vector<std::int64_t> steps_of(const std::string& output) {
  std::vector<std::int64_t> steps;
  for (const auto& line : lines_of(output)) steps.push_back(line.at("step"));
  return steps;
}

TEST(TrainerSamples, EachEvaluationWritesATextOfEachPrompt) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output.path());
  arguments.eval_on_start = true;
  RunOptions options = sampling();
  // Generates again with the weights that the run ends with.
  std::vector<std::string> last;
  CausalLmTask* task = nullptr;
  TrainerParts parts;
  options.prepare = [&](CausalLmTask& of_run, TrainerParts& of_rank) {
    of_rank.samples = samples_of(kPrompts);
    task = &of_run;
    parts = of_rank;
  };
  options.after = [&](Trainer&, int) {
    nn::DirectDispatcher dispatcher;
    nn::Context context(*parts.kernels, *parts.memory, dispatcher);
    for (const auto& ids :
         nn::generate_batch(context, task->model(), kPrompts, parts.samples.options))
      last.push_back(ids_as_text(ids));
  };
  const Outcome outcome = run(arguments, options);
  const auto lines = lines_of(output.path());
  EXPECT_EQ(steps_of(output.path()), std::vector<std::int64_t>({0, 0, 8, 8, 16, 16, 20, 20}));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].at("index"), i % 2);
    EXPECT_EQ(lines[i].at("prompt"), i % 2 == 0 ? "7" : "3 1 4 1 5");
    EXPECT_EQ(lines[i].at("reference"), "known");
  }
  EXPECT_EQ(lines[6].at("text"), last.at(0));
  EXPECT_EQ(lines[7].at("text"), last.at(1));
  EXPECT_NE(lines[1].at("text"), lines[7].at("text")) << "training changed nothing";
  EXPECT_THAT(outcome.main.messages,
              HasSubstr("text of step 8: 7" + std::string(lines[2].at("text"))));
}

// Random numbers and the optimizer's state are those of a run that generates nothing.
TEST(TrainerSamples, ChangeNoLoss) {
  const TemporaryDirectory output;
  RunOptions silent = sampling();
  silent.prepare = nullptr;
  for (const int ranks : {1, 2}) {
    RunOptions options = sampling();
    options.ranks = silent.ranks = ranks;
    auto arguments = arguments_for(output / "a");
    arguments.overwrite_output_dir = true;
    arguments.max_grad_norm = 0;  // two ranks update during the next forward
    const Outcome with = run(arguments, options);
    EXPECT_EQ(lines_of(arguments.output_dir).size(), 6U);
    arguments.output_dir = output / "b";
    const Outcome without = run(arguments, silent);
    EXPECT_EQ(with.main.losses, without.main.losses);
    EXPECT_FALSE(fs::exists(file_of(arguments.output_dir)));
    arguments.step_capture = StepCaptureMode::on;  // replayed steps plan their memory
    EXPECT_EQ(run(arguments, options).main.losses, without.main.losses);
    EXPECT_EQ(lines_of(arguments.output_dir).size(), 6U);
  }
}

TEST(TrainerSamples, EveryLayoutThatCanGenerateHasTheTextsOfOneRank) {
  const TemporaryDirectory output;
  const auto texts_of = [&](const Layout& layout) {
    auto arguments = arguments_for(output / "run");
    arguments.max_steps = 2;
    arguments.learning_rate = 0;  // keeps the initial weights
    arguments.overwrite_output_dir = true;
    arguments.eval_steps = 1;
    const Outcome outcome = run_on(layout, arguments, sampling());
    EXPECT_THAT(outcome.main.messages, Not(HasSubstr("no texts")));
    return bytes_of(file_of(arguments.output_dir));
  };
  const std::string alone = texts_of({.on_mesh = false});
  EXPECT_EQ(std::ranges::count(alone, '\n'), 4);
  for (const Layout& layout :
       {Layout{.rdp = 2, .on_mesh = false}, Layout{.tp = 2, .more = kSpeed},
        Layout{.rdp = 2, .tp = 2, .more = kSpeed}, Layout{.rdp = 2, .more = kOptimizerSharded}})
    EXPECT_EQ(texts_of(layout), alone) << layout.text();
}

TEST(TrainerSamples, OtherLayoutsLogWhyTheyGenerateNothing) {
  const TemporaryDirectory output;
  for (const Layout& layout :
       {Layout{.pp = 2, .microbatches = 2}, Layout{.tp = 2}, Layout{.tp = 2, .more = kShared},
        Layout{.rdp = 2, .more = kParametersSharded}}) {
    SCOPED_TRACE(layout.text());
    auto arguments = arguments_for(output / "run");
    arguments.max_steps = 2;
    arguments.overwrite_output_dir = true;
    const Outcome outcome = run_on(layout, arguments, sampling());
    EXPECT_THAT(outcome.main.messages, HasSubstr("samples.jsonl gets no texts"));
    EXPECT_EQ(outcome.main.evaluations.size(), 1U);
    EXPECT_FALSE(fs::exists(file_of(arguments.output_dir)));
  }
}

// The run fails at step 15: after the evaluation of step 12, whose lines the resumed run repeats,
// and while it writes a line.
TEST(TrainerSamples, AResumedRunHasTheLinesOfAnUnbrokenOne) {
  for (const int ranks : {1, 2}) {
    const TemporaryDirectory output;
    auto arguments = arguments_for(output / "whole");
    arguments.eval_steps = 4;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 10;
    RunOptions options = sampling();
    options.ranks = ranks;
    run(arguments, options);
    const std::string whole = bytes_of(file_of(arguments.output_dir));
    EXPECT_EQ(std::ranges::count(whole, '\n'), 10);

    arguments.output_dir = output / "broken";
    RunOptions failing = options;
    failing.fail_after = 15;
    EXPECT_THAT(error_of(arguments, failing), HasSubstr("the test's own failure"));
    EXPECT_EQ(steps_of(arguments.output_dir).back(), 12);
    std::ofstream(file_of(arguments.output_dir), std::ios::app) << "damaged\n{\"step\": 4, \"te";
    arguments.resume_from_checkpoint = "true";
    run(arguments, options);
    EXPECT_EQ(bytes_of(file_of(arguments.output_dir)), whole);

    run(arguments, options);  // nothing is left to train
    EXPECT_EQ(bytes_of(file_of(arguments.output_dir)), whole);
  }
}

class SignalsInAnEvaluation final : public TrainerCallback {
 public:
  void on_evaluate_progress(std::int64_t batch, std::int64_t) override {
    if (batch == 2 && evaluations_ == 1) signal = 15;
  }
  void on_evaluate(const nlohmann::ordered_json&) override { ++evaluations_; }
  std::atomic<int> signal{0};

 private:
  int evaluations_ = 0;
};

TEST(TrainerSamples, AnEvaluationThatASignalStoppedWritesItsLinesWhenItIsRepeated) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output / "whole");
  RunOptions options = sampling();
  run(arguments, options);
  const std::string whole = bytes_of(file_of(arguments.output_dir));

  arguments.output_dir = output / "broken";
  SignalsInAnEvaluation signalled;
  RunOptions stopped = options;
  stopped.prepare = [&](CausalLmTask&, TrainerParts& parts) {
    parts.samples = samples_of(kPrompts);
    parts.callbacks.push_back(&signalled);
    parts.stop_signal = &signalled.signal;
  };
  EXPECT_EQ(run(arguments, stopped).result.global_step, 16);
  EXPECT_EQ(steps_of(arguments.output_dir).back(), 8);
  // As if the resumed run had been killed between these lines and its checkpoint.
  std::ofstream(file_of(arguments.output_dir), std::ios::app) << R"({"step": 16, "text": "again"})"
                                                              << "\n";
  arguments.resume_from_checkpoint = "true";
  run(arguments, options);
  EXPECT_EQ(bytes_of(file_of(arguments.output_dir)), whole);
}

TEST(TrainerSamples, ARunWithoutEvaluationsWritesThemBeforeEachCheckpoint) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output.path());
  arguments.eval_strategy = Interval::no;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 15;
  RunOptions options = sampling();
  for (const std::int64_t eval_samples : {0, 9}) {
    options.eval_samples = eval_samples;
    arguments.overwrite_output_dir = true;
    run(arguments, options);
    EXPECT_EQ(steps_of(output.path()), std::vector<std::int64_t>({15, 15, 20, 20}));
  }
}

TEST(TrainerSamples, EvaluationsAfterTrainingRepeatNoLine) {
  for (const bool best : {false, true}) {
    const TemporaryDirectory output;
    auto arguments = arguments_for(output.path());
    arguments.load_best_model_at_end = best;
    arguments.save_strategy = best ? Interval::steps : Interval::no;
    arguments.save_steps = 8;
    RunOptions options = sampling();
    options.after = [&](Trainer& trainer, int) {
      trainer.evaluate_once();
      trainer.evaluate();
    };
    run(arguments, options);
    EXPECT_EQ(steps_of(output.path()), std::vector<std::int64_t>({8, 8, 16, 16, 20, 20}));
  }
}

// A callback ends the run at step 20, which is not evaluated during training. The weights of the
// best checkpoint are not those of step 20.
TEST(TrainerSamples, AnEvaluationAfterTrainingWritesTheLinesOfTheLastStep) {
  for (const bool best : {false, true}) {
    const TemporaryDirectory output;
    auto arguments = arguments_for(output.path());
    arguments.max_steps = 30;
    arguments.save_strategy = best ? Interval::steps : Interval::no;
    arguments.save_steps = 8;
    arguments.load_best_model_at_end = best;
    RunOptions options = sampling();
    options.stop_after = 20;
    options.after = [&](Trainer& trainer, int) { trainer.evaluate_once(); };
    run(arguments, options);
    std::vector<std::int64_t> steps = {8, 8, 16, 16};
    if (!best) steps.insert(steps.end(), {20, 20});
    EXPECT_EQ(steps_of(output.path()), steps);
  }
}

TEST(TrainerSamples, ANewRunRemovesTheFileOfAnEarlierOne) {
  const TemporaryDirectory output;
  run(arguments_for(output.path()), sampling());
  ASSERT_EQ(lines_of(output.path()).size(), 6U);
  auto arguments = arguments_for(output.path());
  arguments.max_steps = 8;
  run(arguments, sampling());
  EXPECT_EQ(steps_of(output.path()), std::vector<std::int64_t>({8, 8}));
  run(arguments, {.eval_samples = 9});
  EXPECT_FALSE(fs::exists(file_of(output.path())));
}

TEST(TrainerSamples, TextsThatAreNoUtf8MakeNoInvalidLine) {
  const TemporaryDirectory output;
  SampleTexts samples = samples_of({{1}});
  samples.prompts[0].text = "\xc3(\n\"";
  samples.text_of = [](std::span<const std::int32_t>, std::span<const std::int32_t>) {
    return std::string("\xff\x00\xfe end", 7);
  };
  run(arguments_for(output.path()), sampling(samples));
  const auto lines = lines_of(output.path());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].at("text"), std::string("\xEF\xBF\xBD\x00\xEF\xBF\xBD end", 11));
  EXPECT_EQ(lines[0].at("prompt"), "\xEF\xBF\xBD(\n\"");
}

TEST(TrainerSamples, PromptsThatFillTheModelAreRefused) {
  const TemporaryDirectory output;
  EXPECT_THAT(error_of(arguments_for(output.path()),
                       sampling(samples_of({std::vector<std::int32_t>(14, 1)}))),
              HasSubstr("a prompt of 14 tokens and 6 new ones; the model has 16 positions"));
  SampleTexts samples = samples_of(kPrompts);
  samples.text_of = nullptr;
  EXPECT_THAT(error_of(arguments_for(output.path()), sampling(samples)),
              HasSubstr("lacks text_of"));
  samples = {.first_of_set = 2, .text_of = samples_of({}).text_of};
  EXPECT_THAT(error_of(arguments_for(output.path()), sampling(samples)),
              HasSubstr("evaluation generates none"));
}

}  // namespace
}  // namespace shoal
