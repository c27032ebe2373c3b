// The Trainer's parts, shared by its source files. Not for other libraries.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collectives/long_work.h"
#include "shoal/nn/optim/schedule.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/trace/json_lines.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/checkpoint_writer.h"
#include "shoal/train/checkpoint/run_lock.h"
#include "shoal/train/data/loader.h"
#include "shoal/train/trainer/directories.h"
#include "shoal/train/trainer/engine.h"
#include "shoal/train/trainer/loader_monitor.h"
#include "shoal/train/trainer/plan.h"
#include "shoal/train/trainer/sample_log.h"
#include "shoal/train/trainer/trainer.h"
#include "shoal/train/trainer/use_monitor.h"

namespace shoal {

struct Trainer::Impl {
  Impl(const ResolvedRun& run, const TrainerParts& trainer_parts);
  void begin();  // creates the engine, and the task if `parts` has model_init

  ResolvedRun args;
  TrainerParts parts;
  std::unique_ptr<Task> made;  // created by parts.model_init
  std::unique_ptr<collectives::LongWork> long_work;
  std::unique_ptr<Engine> engine;
  DataShare share;
  std::optional<nn::Schedule> schedule;
  // Set by the first train().
  std::unique_ptr<Loader> loader;
  std::optional<StepPlan> plan;
  StreamState stream;  // where the next step begins, if the training set is a stream
  LoaderMonitor loader_monitor;
  UseMonitor use_monitor;
  TrainerState state;
  std::unique_ptr<JsonLinesWriter> metrics_file;  // rank 0
  std::unique_ptr<SampleLog> sample_log;          // rank 0
  // output_dir is of this run, and the weights are those after state.global_step.
  bool weights_are_of_step = false;
  // On each owner of output_dir: held from train() until the Trainer and its writer are destroyed,
  // because files that the program writes after training belong to the run, too.
  std::shared_ptr<RunLock> run_lock;
  std::unique_ptr<CheckpointWriter> writer;  // on every rank that writes
  // A checkpoint in parts that is not complete yet; set on all ranks or on none.
  struct Unfinished {
    std::shared_ptr<CheckpointTransaction> transaction;  // on a directory's owner
    std::shared_ptr<SealedFile> part;                    // this rank's part, once written
    std::shared_ptr<std::atomic<bool>> written;
    std::vector<std::string> keep;
  };
  std::optional<Unfinished> unfinished;
  DirectoryOwners owners;       // of output_dir; set when train() begins
  std::string last_checkpoint;  // of this run, or the one it resumed from
  std::int64_t last_checkpoint_step = -1;
  parallel::ReducerStatistics reduced_when_logged;
  StepTimes times_when_logged;
  std::int64_t step_when_logged = 0, tokens_when_logged = 0, tokens_when_begun = 0;
  std::int64_t left_out_when_logged = 0, left_out_when_begun = 0;  // of the engine
  double seconds_when_begun = 0;                                   // of the engine's clock
  double flops_per_token = 0, peak_flops = 0;                      // Trainer::set_peak()
  std::vector<std::string> predictions_missed;                     // of the last record
  StepReport last_learnt;  // the newest step whose loss is known
  bool warned_not_finite = false;
  bool needs_every_step = true;  // needs_every_step() of any callback on any rank
  // Steps whose results are not known yet; state.optimizer_steps does not count them.
  struct PendingStep {
    StepReport report;
    double targets = 0;
  };
  std::vector<PendingStep> pending;
  bool trained = false;   // train() has been called
  bool training = false;  // train() is running, so a signal also stops long work
  Clock::time_point train_began{};

  Speed speed() const;
  // `left_out`: how many of this rank's tokens were not computed. The others are taken to have left
  // out as many.
  double mfu(double tokens, std::int64_t left_out, double seconds) const {
    tokens -= static_cast<double>(left_out * share.count);
    return peak_flops > 0 && seconds > 0 ? tokens * flops_per_token / seconds / peak_flops : 0;
  }
  bool streams() const { return parts.train_shards != nullptr; }
  bool is_main() const { return parts.communicator->rank() == 0; }
  int ranks() const { return parts.communicator->size(); }
  bool writes_files() const { return is_main() || engine->writes_parts(); }
  // Samples that all ranks consume with one batch each.
  std::int64_t together() const { return share.samples(args.per_device_train_batch_size); }
  template <typename F>
  void each_callback(F&& f) {
    for (TrainerCallback* callback : parts.callbacks) f(*callback);
  }
  void say(const std::string& line) {
    each_callback([&](TrainerCallback& c) { c.on_message(line); });
  }
  void end_others(const std::exception& why) noexcept;  // also tells them why this rank ends
  // Runs work(); if it throws on this rank, the waits of other ranks end too.
  template <typename Work>
  decltype(auto) guarded(Work&& work) {
    try {
      return work();
    } catch (const StoppedBySignal&) {  // on every rank
      throw;
    } catch (const std::exception& why) {
      end_others(why);
      throw;
    }
  }
  // Runs work(). Adds a remedy to the message of an out_of_memory error.
  enum class MemoryUse : std::uint8_t { step, evaluation, checkpoint };
  template <typename Work>
  decltype(auto) with_memory_for(MemoryUse use, Work&& work) {
    try {
      return work();
    } catch (const Error& error) {
      // Remedies for device memory do not help with host memory (make_pinned_memory()'s errors).
      if (error.code() != ErrorCode::out_of_memory || error.message().starts_with("pinned host "))
        throw;
      throw Error(error.code(), error.message(), what_helps(use));
    }
  }
  // The number of the signal that this rank received; null: signals do not stop the work.
  collectives::LongWork::Received received_signal() const {
    return training || parts.stop_evaluations ? parts.stop_signal : nullptr;
  }
  // Runs work(), which takes a different time on each rank and may communicate. A rank that is done
  // waits for the others as long as they make progress. Throws StoppedBySignal if `stopped_by` is
  // set on a rank.
  template <typename Work>
  void at_own_pace(Work&& work, collectives::LongWork::Received stopped_by = nullptr) {
    try {
      const progress::Listener hears([this, stopped_by] {
        if (const int signal = long_work->beat(stopped_by)) throw StoppedBySignal(signal);
      });
      work();
    } catch (const StoppedBySignal&) {  // finish() throws it, too
    }
    if (const int signal = long_work->finish(stopped_by)) throw StoppedBySignal(signal);
  }
  // Sums in place over all ranks; blocks.
  void sum(std::int64_t* values, std::int64_t count);
  void sum(double* values, std::int64_t count);

  // trainer.cc
  void take_output_dir();         // sets owners, too; called once
  void check_output_dir() const;  // throws unavailable if another run has taken it
  void write_metrics(const nlohmann::ordered_json& record);
  void check_communicator() const;
  std::unique_ptr<Loader> make_train_loader();
  std::shared_ptr<const std::vector<std::int32_t>> lengths_of_samples();
  std::unique_ptr<Loader> make_stream_loader(const LoaderOptions& options);
  void prepare_training();
  bool prepare_run();  // true: the run resumes from a checkpoint
  struct StepsDone {
    Clock::time_point began = Clock::now();
    std::int64_t samples = 0, tokens = 0;
  };
  int train_steps(StepsDone& done);
  TrainResult train();

  // trainer_precision.cc
  void settle_precision();  // decides bf16 auto; notes emulated bf16

  // trainer_batch_size.cc
  void find_batch_size();  // sets the size in `args` and in the loader
  std::int64_t first_batch_size();
  Sample longest_sample();
  // nullopt: the batch fits; otherwise the reason why not.
  std::optional<std::string> try_batch(const Sample& longest, std::int64_t size);
  std::vector<Buffer> more_than(std::int64_t bytes) const;
  std::optional<std::string> first_said(const std::optional<std::string>& own);  // on every rank
  std::string what_helps(MemoryUse use) const;

  // trainer.cc
  struct StepInput {
    std::vector<Batch> batches;      // batches of this rank's data index (DataShare)
    std::int64_t first_ordinal = 0;  // of the step's first sample, in the epoch's list
    std::int64_t targets = 0;        // over all ranks
    std::int64_t tokens = 0;         // over all ranks
    bool stop = false;               // some rank got a request to stop
    bool out_of_time = false;        // rank 0's clock passed max_train_minutes
    bool epoch_end = false;
  };
  StepInput next_input();
  void seek_loader();
  // Saves after next_input() found a request to stop. Returns the highest signal of any rank.
  int stop();
  StepReport run_step(const StepInput& input);
  void learn(StepReport& report, double targets, const StepDone& done);
  void learn_pending();
  void settle();  // waits for every step, and puts its results into `state`
  bool settles(const StepInput& input, std::int64_t step) const;
  void after_step(const StepInput& input, const StepReport& report, TrainerControl& control);
  void log(nlohmann::ordered_json record, const StepReport* report);
  void log_window(const StepReport& report);
  // Adds to a record of metrics.jsonl: mean seconds of a step since the last record, in total and
  // by phase, and memory.
  void add_where_time_went(nlohmann::ordered_json& record);
  double epoch_now() const;
  nlohmann::ordered_json finish(double seconds, std::int64_t steps_done, std::int64_t samples_done);

  // trainer_evaluate.cc
  struct Evaluated {
    double loss = 0, targets = 0;  // sums over all ranks
    std::int64_t samples = 0, batches = 0;
    double seconds = 0;
    Predictions predictions;  // if requested
  };
  Evaluated run_over(const std::shared_ptr<const Dataset>& dataset, bool predict);
  // Adds "PREFIX_runtime" and the other speed values.
  static void add_speed(nlohmann::ordered_json& metrics, const std::string& prefix,
                        const Evaluated& done);
  void add_computed(nlohmann::ordered_json& metrics, const std::string& prefix,
                    const Predictions& predictions) const;
  nlohmann::ordered_json evaluate(const std::shared_ptr<const Dataset>& dataset,
                                  const std::string& suffix = "");
  // An evaluation's values: `record` without times, `metrics` with them.
  struct EvaluationMetrics {
    nlohmann::ordered_json record, metrics;
    std::vector<nlohmann::ordered_json> samples;  // sample_lines()
  };
  EvaluationMetrics measure(const std::shared_ptr<const Dataset>& dataset,
                            const std::string& suffix);
  void log_evaluation(const EvaluationMetrics& given);
  nlohmann::ordered_json evaluate_in_training();
  // In a resumed run: makes the evaluation that was due when the run was stopped.
  void evaluate_what_is_due(TrainerControl& control);
  nlohmann::ordered_json evaluate_once();
  PredictionOutput predict(const std::shared_ptr<const Dataset>& dataset);
  void check_metric_name() const;
  bool greater_is_better() const;
  // Records whether the metric is the best so far; requests a stop when patience ends
  // (early_stopping_patience).
  void note_metric(const nlohmann::ordered_json& metrics, TrainerControl& control);

  // Metrics of parts.eval_dataset with this step's weights; nullopt after the weights change.
  std::optional<EvaluationMetrics> evaluated_now;

  // trainer_samples.cc
  void check_samples() const;
  void open_samples(bool resumed);
  // A line of samples.jsonl for each text; empty except on rank 0. `predictions`: of
  // parts.eval_dataset. Collective.
  std::vector<nlohmann::ordered_json> sample_lines(const Predictions& predictions);
  void log_samples(const std::vector<nlohmann::ordered_json>& lines);
  void sample_before_saving();  // in runs that do not evaluate during training

  // trainer_checkpoint.cc
  void save_checkpoint();
  void snapshot_and_write();
  StreamState stream_of_all();
  void save_whole(const std::vector<std::string>& keep);
  void save_part(const std::vector<std::string>& keep);
  void complete();        // call when all parts exist; rank 0's writer marks it complete
  void finish_writing();  // waits for all writers, then completes `unfinished`
  void wait_for_writers();
  bool resume();                      // returns true if the run resumed from a checkpoint
  std::string will_continue() const;  // the checkpoint to resume, unverified, on rank 0; or empty
  std::optional<std::string> checkpoint_to_resume();
  std::optional<std::string> newest_to_resume();
  void agree_on_step(std::int64_t step);  // -1: no checkpoint
  // For an error that every rank found: rank 0 reports it, the others end silently.
  [[noreturn]] void refuse(const Error& error) const;
  // Returns the problem of a checkpoint, the same on every rank; nullopt: none.
  std::optional<std::string> problem_of(const std::string& checkpoint,
                                        collectives::LongWork::Received stopped_by = nullptr);
  void load_checkpoint(const std::string& directory);
  void find_best_checkpoint();  // finds the resumed run's best checkpoint, if it still exists
  nlohmann::json data_options() const;  // TrainerState::data of this run
  void compare_data(const TrainerState& saved, const std::string& directory);
  void resume_data(const std::string& directory);
  void check_position(const std::string& directory) const;
  void load_best_model();
  void save_model(const std::string& directory);
};

}  // namespace shoal
