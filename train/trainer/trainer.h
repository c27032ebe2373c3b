// The step loop: training, evaluation, checkpoints, as Hugging Face's Trainer has them.
//
//   Trainer trainer(arguments, parts);
//   TrainResult result = trainer.train();       // resumes where arguments say so
//   nlohmann::ordered_json m = trainer.evaluate();
//
// Every rank makes one and calls the same methods in the same order. Results depend neither on the
// number of loader workers nor on interruption (decisions 10, 19): a run that was stopped and
// resumed from a checkpoint has the bits of the run that was not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/capture/planned_memory.h"
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

namespace shoal {

namespace parallel {
class TensorParallelRegistry;
}

// What the metrics of a task are computed from, as Hugging Face's compute_metrics. Called on every
// rank, with the same predictions; what it gives must depend on nothing else. Names are logged with
// "eval_" (predict(): "test_") in front.
using ComputeMetrics = std::function<nlohmann::ordered_json(const Predictions& predictions)>;

// What a Trainer works with; all of it outlives the Trainer.
struct TrainerParts {
  Task* task = nullptr;  // its module need not have values yet
  // Instead of `task`: makes the one that train() begins with, each time that it is called.
  std::function<std::unique_ptr<Task>()> model_init;
  ComputeMetrics compute_metrics;  // empty: evaluation computes the loss alone
  kernels::Kernels* kernels = nullptr;
  CountingMemory* memory = nullptr;  // of the kernels' device
  // Where batches and copies for checkpoints are; null: `memory`, which must be the host's then.
  MemoryResource* host_memory = nullptr;
  // Of a device's run: the pinned host memory that is under every pool of it (host_memory's), so
  // that it knows what the process has locked, with what pools keep. What is staged, offloaded or
  // kept on the host is taken from there; logged as pinned_memory_*, and told where it runs out.
  // Outlives tasks and communicators too. Null: each takes its own, which nobody counts.
  CountingMemory* pinned_memory = nullptr;
  // Below `memory` and what the kernels take scratch from; null: steps are not captured.
  nn::PlannedMemory* planned_memory = nullptr;
  // As communicator_options() of resolved arguments says (mp_parameters.h), its stream the
  // kernels', and with what it was made; null: nobody says. Another backend is refused, and where
  // the arguments ask for rules of collectives or fixed_order, a communicator that was not made
  // with them, or nobody says so.
  collectives::Communicator* communicator = nullptr;
  const collectives::CommunicatorOptions* made_with = nullptr;
  // How tensor parallelism cuts modules, a user's own kinds among them; null: its defaults().
  const parallel::TensorParallelRegistry* tensor_parallel = nullptr;
  std::shared_ptr<const Dataset> train_dataset, eval_dataset;  // eval: optional
  // Instead of train_dataset: a set that is read as a stream, through a shuffle buffer of so many
  // samples. Has no end, so the arguments need max_steps.
  std::shared_ptr<const ShardSet> train_shards;
  // Options that the training set's rows follow from, and their values, as a checkpoint keeps them:
  // a run that goes on from it says which are others. What the Trainer itself knows (the number of
  // rows, how they are drawn) need not be among them.
  nlohmann::json data_options = nlohmann::json::object();
  std::int64_t shuffle_buffer = 10000;
  bool shard_by_rank = false;  // each replica streams every N-th shard, instead of all one order
  std::shared_ptr<const Collator> collator;
  // A directory whose weights training starts from; empty: initialised from the seed.
  std::string initial_weights;
  std::vector<TrainerCallback*> callbacks;
  Tracer* tracer = nullptr;  // optional
  // Non-zero on any rank: all of them save and stop before their next step. A handler that sets it
  // must not run on a thread that computes (runtime/base/signal_thread.h).
  const std::atomic<int>* stop_signal = nullptr;

  MemoryResource& host() const { return host_memory != nullptr ? *host_memory : *memory; }
};

struct TrainResult {
  std::int64_t global_step = 0;
  double train_loss = 0;  // mean over all steps of the run
  nlohmann::ordered_json metrics;
  int stop_signal = 0;  // what stopped the run before its end, on every rank; 0: nothing did
  std::string last_checkpoint;  // written by this run or resumed from; empty: none
};

struct PredictionOutput {
  Predictions predictions;
  nlohmann::ordered_json metrics;
};

// invalid_argument where output_dir holds checkpoints and `arguments` do not say what becomes of
// them. train() does this too; a program may ask before it builds anything.
void check_output_directory(const TrainingArguments& arguments);

class Trainer {
 public:
  // Materialises the parameters, and buckets for their gradients. Collective.
  Trainer(const TrainingArguments& arguments, const TrainerParts& parts);
  ~Trainer();

  // Collective. Throws what failed; a checkpoint that could not be written ends training at the
  // next step, earlier ones untouched.
  TrainResult train();
  // Mean loss over the whole evaluation set, each sample once, perplexity where tokens are
  // predicted, and what compute_metrics gives. Collective.
  nlohmann::ordered_json evaluate();
  // evaluate(), but where training ended with an evaluation of the weights that are there, its
  // metrics, times among them, are logged and returned again. Collective.
  nlohmann::ordered_json evaluate_once();
  // The same of another set, with `suffix` behind each name: "eval_accuracy_mm". Collective.
  nlohmann::ordered_json evaluate(std::shared_ptr<const Dataset> dataset,
                                  const std::string& suffix);
  // Of any set: every sample's scores, in its order, on every rank; the metrics, "test_loss" among
  // them where a sample has labels. Logs nothing. Collective.
  PredictionOutput predict(std::shared_ptr<const Dataset> dataset);
  // The model in Hugging Face's format, into output_dir itself; rank 0 writes. Collective.
  void save_model(const std::string& directory);

  const TrainerState& state() const;
  std::int64_t total_steps() const;
  std::int64_t parameter_count() const;
  // What a run is, line by line, for the header of a log (decisions 18 and 19).
  std::vector<std::string> header() const;
  std::string describe_capture() const;  // what step capture came to; empty: nothing
  // Bytes by tag, now and at the peak, pinned ones apart; what waited elsewhere for its backward,
  // or that nothing did.
  std::vector<std::string> memory_report() const;
  // Of this rank's activations that left; none where they are to stay. A graph's replays count
  // nothing.
  std::optional<parallel::OffloadStatistics> offloaded() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
