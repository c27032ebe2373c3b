// A signal stops long work between two of its pieces. Ranks wait for work that takes one rank long.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/progress.h"

namespace shoal {
namespace {

using test::Outcome;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Signals the run to stop from a batch of an evaluation, or from a message.
class Signalled final : public TrainerCallback {
 public:
  explicit Signalled(std::atomic<int>& signal) : signal_(signal) {}
  void on_evaluate_progress(std::int64_t batch, std::int64_t) override {
    batches_ = batch;
    if (batch == in_batch && evaluation_ == of_evaluation) signal_ = 15;
  }
  void on_evaluate(const nlohmann::ordered_json&) override { ++evaluation_; }
  void on_message(const std::string& line) override {
    if (!at_message.empty() && line.find(at_message) != std::string::npos) signal_ = 15;
  }
  std::int64_t batches() const { return batches_; }
  std::int64_t in_batch = -1;
  int of_evaluation = 0;
  std::string at_message;

 private:
  std::atomic<int>& signal_;
  std::int64_t batches_ = 0;
  int evaluation_ = 0;
};

std::string last_state(const std::string& output) {
  return test::bytes_of(output + "/checkpoint-12/trainer_state.json");
}

TEST(TrainerStop, InAnEvaluationSavesAndAResumedRunEvaluates) {
  struct Case {
    const char* name;
    int ranks;
    int of_evaluation;
    nlohmann::json mp_parameters = {};
  };
  const nlohmann::json sharded = {{"ddp", true}, {"sharded_data_parallel_degree", 2}};
  for (const Case& c : std::initializer_list<Case>{{"alone", 1, 2},
                                                   {"at_end", 1, 3},
                                                   {"at_start", 1, 0},
                                                   {"two", 2, 1},
                                                   {"sharded", 2, 2, sharded}}) {
    SCOPED_TRACE(c.name);
    const TemporaryDirectory output;
    auto arguments = toy_arguments(output / "whole");
    arguments.max_steps = 12;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 12;
    arguments.eval_strategy = Interval::steps;
    arguments.eval_steps = 4;
    arguments.eval_on_start = true;
    arguments.load_best_model_at_end = false;
    if (!c.mp_parameters.is_null()) arguments.mp_parameters = c.mp_parameters;
    RunOptions options{.ranks = c.ranks, .eval_samples = 40};
    const Outcome whole = run(arguments, options);
    ASSERT_EQ(whole.main.evaluations.size(), 4U);

    arguments.output_dir = output / "broken";
    std::atomic<int> signal{0};
    Signalled signalled(signal);
    signalled.in_batch = 2;
    signalled.of_evaluation = c.of_evaluation;
    RunOptions stopped = options;
    stopped.prepare = [&](CausalLmTask&, TrainerParts& parts) {
      if (parts.communicator->rank() != c.ranks - 1) return;  // only the last rank is signalled
      parts.callbacks.push_back(&signalled);
      parts.stop_signal = &signal;
    };
    const Outcome first = run(arguments, stopped);
    EXPECT_EQ(first.result.stop_signal, 15);
    EXPECT_EQ(first.result.global_step, 4 * c.of_evaluation);
    EXPECT_EQ(first.main.evaluations.size(), static_cast<std::size_t>(c.of_evaluation));
    if (c.ranks == 1) {
      EXPECT_EQ(signalled.batches(), 2);
    }
    EXPECT_TRUE(std::filesystem::exists(first.result.last_checkpoint + "/COMPLETE"));

    arguments.resume_from_checkpoint = "true";
    const Outcome rest = run(arguments, options);
    EXPECT_EQ(rest.main.evaluations.size(), static_cast<std::size_t>(4 - c.of_evaluation));
    EXPECT_EQ(last_state(output / "whole"), last_state(output / "broken"));
  }
}

TEST(TrainerStop, WhileItWaitsForAStaleLockChangesNothing) {
  for (const int ranks : {1, 2}) {
    const TemporaryDirectory output;
    std::ofstream(output / "run.lock")
        << R"({"host":"elsewhere","boot":"b","pid_namespace":1,"pid":7,"process_start":1,)"
           R"("token":"0123456789abcdef0123456789abcdef","since":"s","alive":"a","beat":1})";
    auto arguments = toy_arguments(output.path());
    arguments.save_strategy = Interval::steps;
    std::atomic<int> signal{0};
    Signalled signalled(signal);
    signalled.at_message = "whether it still lives";
    RunOptions options{.ranks = ranks};
    options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
      if (parts.communicator->rank() != 0) return;
      parts.callbacks.push_back(&signalled);
      parts.stop_signal = &signal;
    };
    const auto began = Clock::now();
    const Outcome outcome = run(arguments, options);
    EXPECT_LT(seconds_since(began), 10) << "the lease is 30 s";
    EXPECT_EQ(outcome.result.stop_signal, 15);
    EXPECT_EQ(outcome.result.last_checkpoint, "");
    EXPECT_FALSE(std::filesystem::exists(output / "metrics.jsonl"));
    EXPECT_THAT(test::bytes_of(output / "run.lock"), HasSubstr("elsewhere"));
  }
}

TEST(TrainerStop, WaitsForARankThatWritesSlowly) {
  ::setenv("SHOAL_DEADLINE_S", "1", 1);
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  RunOptions options{.ranks = 2};
  options.after = [&](Trainer& trainer, int rank) {
    const auto began = Clock::now();
    trainer.at_own_pace([&] {
      for (int piece = 0; rank == 0 && piece < 5; ++piece) {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        progress::made();
      }
    });
    EXPECT_GE(seconds_since(began), 2.4);
  };
  EXPECT_EQ(test::error_of(arguments, options), "no error");
  ::unsetenv("SHOAL_DEADLINE_S");
}

}  // namespace
}  // namespace shoal
