// A training run of about a second: a tiny GPT-2 on made-up ids, with threads as ranks.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "shoal/nn/models/decoder/config.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/tasks/causal_lm.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::test {

inline constexpr std::int32_t kToyVocabulary = 61;
nn::DecoderConfig toy_config();

class Recorder final : public TrainerCallback {
 public:
  void on_step_end(const StepReport& report, TrainerControl& control) override {
    losses.push_back(report.loss);
    norms.push_back(report.grad_norm);
    if (report.step == fail_after) throw Error(ErrorCode::internal, "the test's own failure");
    if (report.step == stop_after) control.should_stop = true;
    if (report.step == signal_after && signal != nullptr) *signal = 15;
  }
  void on_log(const nlohmann::ordered_json& record) override { logs.push_back(record); }
  void on_save(std::int64_t step, const std::string&) override { saves.push_back(step); }
  void on_evaluate(const nlohmann::ordered_json& metrics) override {
    evaluations.push_back(metrics);
  }
  void on_message(const std::string& line) override { messages += line + "\n"; }
  std::vector<double> losses, norms;
  std::vector<nlohmann::ordered_json> logs, evaluations;
  std::vector<std::int64_t> saves;
  std::string messages;
  std::int64_t stop_after = -1, signal_after = -1, fail_after = -1;
  std::atomic<int>* signal = nullptr;
};

TrainingArguments toy_arguments(const std::string& output);

struct Outcome {
  Recorder main;  // rank 0's
  TrainResult result;
  std::string header;                      // if RunOptions ask for it
  std::vector<std::int64_t> memory_peaks;  // bytes, of each rank after training
};

struct RunOptions {
  int ranks = 1;
  std::int64_t samples = 41;  // not a multiple of any batch size
  std::int64_t eval_samples = 0;
  std::int64_t stop_after = -1, signal_after = -1;
  std::int64_t fail_after = -1;  // the last rank throws after this step; -1: never
  nn::DecoderConfig config = toy_config();
  bool header = false;
  std::function<std::int64_t(int rank)> memory_limit = {};         // bytes; empty: none
  std::string save_model_to = {}, initial_weights = {};            // directories; empty: none
  std::function<TrainingArguments(int rank)> arguments_of = {};    // empty: the same on each rank
  std::function<void(CausalLmTask&, TrainerParts&)> prepare = {};  // before the Trainer is made
  std::function<void(Trainer&, int rank)> after = {};              // after training
};

// Trains. The outcome is rank 0's. Throws the error of a failing rank.
Outcome run(const TrainingArguments& arguments, const RunOptions& options = {});
// The error of each rank; "" for a rank without one.
std::vector<std::string> errors_of(const TrainingArguments& arguments, const RunOptions& options);
// The error of run(), or "no error".
std::string error_of(const TrainingArguments& arguments, const RunOptions& options = {});

std::string bytes_of(const std::string& path);
// `tolerance` is relative.
void expect_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance);
// One uninterrupted run, and one that stopped half way and resumed from its checkpoint,
// in OUTPUT/whole and OUTPUT/broken. All files of their last checkpoints have been
// compared and are identical.
struct WentOn {
  Outcome whole, rest;
};
WentOn stop_and_go_on(TrainingArguments arguments, const RunOptions& options,
                      const std::string& output);
// Stopping after 25 of 50 steps and resuming gives the same losses and files as an uninterrupted
// run.
void expect_resume_to_the_bit(TrainingArguments arguments, const RunOptions& options);

}  // namespace shoal::test
