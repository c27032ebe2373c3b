// The step loop: training, evaluation, checkpoints, as in Hugging Face's Trainer.
//
//   Trainer trainer(arguments, parts);
//   TrainResult result = trainer.train();       // resumes if the arguments ask for it
//   nlohmann::ordered_json m = trainer.evaluate();
//
// Every rank creates one and calls the same methods in the same order. Results do not depend on the
// number of loader workers or on interruptions (decisions 10, 19). A run that was stopped and
// resumed from a checkpoint gives bitwise the same results as one that was not.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/capture/planned_memory.h"
#include "shoal/nn/models/generate.h"
#include "shoal/parallel/activation/offload.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/trace/trace.h"
#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/data/batch.h"
#include "shoal/train/data/dataset.h"
#include "shoal/train/data/sample_stream.h"
#include "shoal/train/tasks/task.h"
#include "shoal/train/trainer/arguments.h"
#include "shoal/train/trainer/callback.h"
#include "shoal/train/trainer/predictions.h"
#include "shoal/train/trainer/sample_texts.h"

namespace shoal {

namespace parallel {
class TensorParallelRegistry;
}
struct ResolvedRun;

// Computes a task's metrics, like Hugging Face's compute_metrics. Called on every rank with the
// same predictions; the result must depend on nothing else. Names are logged with the prefix
// "eval_" (predict(): "test_").
using ComputeMetrics = std::function<nlohmann::ordered_json(const Predictions& predictions)>;

// The parts that a Trainer works with; all must outlive it.
struct TrainerParts {
  Task* task = nullptr;  // its parameters need no values yet
  // Replaces `task`: every call of train() begins with a new task from this function.
  std::function<std::unique_ptr<Task>()> model_init;
  ComputeMetrics compute_metrics;  // empty: evaluation computes only the loss
  kernels::Kernels* kernels = nullptr;
  int threads = 1;  // of this rank (threads_of_rank()), to count the tokens of samples
  CountingMemory* memory = nullptr;  // on the kernels' device
  // For batches and checkpoint copies; null: `memory`, which must then be host memory.
  MemoryResource* host_memory = nullptr;
  // For runs on a device: the pinned host memory from which the run's pools allocate, including
  // host_memory's. It counts all pinned memory, also the unused part of pools. Staging, offloading
  // and host copies use it. Logged as pinned_memory_*, and named in the error when it runs out.
  // Must outlive tasks and communicators, too. Null: each component allocates its own, uncounted.
  CountingMemory* pinned_memory = nullptr;
  // `memory` and the kernels' scratch memory allocate from it; null: steps are not captured.
  nn::PlannedMemory* planned_memory = nullptr;
  // Must be created with communicator_options(run) of the resolved run, on the kernels' stream.
  // `made_with` records those options; null: not recorded. Another backend is refused. If the
  // arguments ask for collective rules or fixed_order, `made_with` must have them.
  collectives::Communicator* communicator = nullptr;
  const collectives::CommunicatorOptions* made_with = nullptr;
  // How tensor parallelism splits modules, including the user's own kinds; null: its defaults().
  const parallel::TensorParallelRegistry* tensor_parallel = nullptr;
  std::shared_ptr<const Dataset> train_dataset, eval_dataset;  // eval: optional
  // Replaces train_dataset: a set that is streamed through a shuffle buffer of `shuffle_buffer`
  // samples. A stream has no end, so the arguments need max_steps.
  std::shared_ptr<const ShardSet> train_shards;
  // Options that determine the training set's rows, with their values, for checkpoints: a resumed
  // run reports which ones differ. Values that the Trainer knows (number of rows, sampling) need
  // not be included.
  nlohmann::json data_options = nlohmann::json::object();
  std::int64_t shuffle_buffer = 10000;
  bool shard_by_rank = false;  // each replica streams every N-th shard; false: all share one order
  std::shared_ptr<const Collator> collator;
  // If set, evaluations and predictions generate texts (SamplePrediction::tokens) instead of
  // computing scores. The task must have a Task::generator().
  std::optional<nn::GenerationOptions> generation;
  SampleTexts samples;  // what samples.jsonl gets; empty: nothing
  // A directory with the initial weights; empty: initialised from the seed.
  std::string initial_weights;
  std::vector<TrainerCallback*> callbacks;
  nlohmann::json predicted;  // a step of this rank (forecast.h), for metrics.jsonl; null: unknown
  Tracer* tracer = nullptr;  // optional
  // Non-zero on any rank: all ranks save and stop before their next step, or before their next
  // batch of an evaluation, which a resumed run then repeats. A handler that sets it must not run
  // on a computing thread (runtime/base/signal_thread.h).
  const std::atomic<int>* stop_signal = nullptr;
  // True: `stop_signal` also ends an evaluate() or predict() outside train(), which then throws
  // StoppedBySignal.
  bool stop_evaluations = false;

  MemoryResource& host() const { return host_memory != nullptr ? *host_memory : *memory; }
};

// A rank got a request to stop before the work ended, and all ranks know it.
struct StoppedBySignal final : std::exception {
  explicit StoppedBySignal(int number) : signal(number) {}
  const char* what() const noexcept override { return "stopped by a signal"; }
  const int signal;
};

struct TrainResult {
  std::int64_t global_step = 0;
  double train_loss = 0;  // mean over all steps of the run
  nlohmann::ordered_json metrics;
  int stop_signal = 0;          // the signal that stopped the run early, on every rank; 0: none
  std::string last_checkpoint;  // written or resumed from by this run; empty: none
};

struct PredictionOutput {
  Predictions predictions;
  nlohmann::ordered_json metrics;
};

// Throws invalid_argument if output_dir holds checkpoints and `arguments` do not say how to treat
// them. train() calls it too; a program may call it before it builds anything.
void check_output_directory(const TrainingArguments& arguments);

class Trainer {
 public:
  // Creates the engine with the model's parameters. Collective.
  Trainer(const ResolvedRun& run, const TrainerParts& parts);
  // Resolves the arguments first.
  Trainer(const TrainingArguments& arguments, const TrainerParts& parts);
  ~Trainer();

  // Waits for exclusive use of output_dir, and keeps it until the Trainer is destroyed. Throws
  // invalid_argument if another run uses it. train() calls it too. If the program calls it before
  // train(), a signal ends the wait at once. Collective.
  void take_output_dir();
  // Call before replacing a file in output_dir. Throws unavailable if another run has taken the
  // directory.
  void check_output_dir() const;
  // Collective. Throws the error that ended training. If a checkpoint cannot be written, training
  // ends at the next step; earlier checkpoints stay.
  TrainResult train();
  // Mean loss over the whole evaluation set, each sample once; perplexity if tokens are predicted;
  // and the values of compute_metrics. Collective.
  nlohmann::ordered_json evaluate();
  // Like evaluate(). But if training ended with an evaluation of the current weights, logs and
  // returns the metrics of that evaluation again, including times. Collective.
  nlohmann::ordered_json evaluate_once();
  // Like evaluate() for another set, with `suffix` after each name: "eval_accuracy_mm". Collective.
  nlohmann::ordered_json evaluate(std::shared_ptr<const Dataset> dataset,
                                  const std::string& suffix);
  // Returns, on every rank, every sample's scores in order, and the metrics, which include
  // "test_loss" if a sample has labels. Logs nothing. Collective.
  PredictionOutput predict(std::shared_ptr<const Dataset> dataset);
  // Runs work(), which takes a different time on each rank. A rank that is done waits for the
  // others as long as these make progress (runtime/base/progress.h). Collective.
  void at_own_pace(const std::function<void()>& work);
  // Writes the model in Hugging Face's format into `directory` itself; rank 0 writes. Collective.
  void save_model(const std::string& directory);

  // Work of a token in training (FLOP), and the rate that the devices of all ranks could reach
  // (FLOP/s). With them, records of metrics.jsonl and the results have the share reached, "mfu".
  void set_peak(double flops_per_token, double flops);
  struct Speed {
    double tokens_per_second = 0;  // of all ranks, while steps ran
    double mfu = 0;                // 0: no peak is known
  };
  Speed speed() const;  // since train() began
  DType dtype() const;  // in which it computes

  const TrainerState& state() const;
  std::int64_t total_steps() const;
  std::int64_t parameter_count() const;
  // Lines that describe the run, for the header of a log (decisions 18 and 19).
  std::vector<std::string> header() const;
  // The parts that a prediction missed by more than a tenth, in the last record of training. Rank
  // 0.
  std::vector<std::string> predictions_missed() const;
  std::string describe_capture() const;  // how steps were captured; empty: no step was
  // Current and peak bytes by tag, with pinned memory listed separately. Then the offloaded
  // activations, or a note that none were offloaded.
  std::vector<std::string> memory_report() const;
  // Statistics of this rank's offloaded activations; nullopt without offloading. Graph replays are
  // not counted.
  std::optional<parallel::OffloadStatistics> offloaded() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
