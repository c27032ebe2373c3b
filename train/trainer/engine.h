// The Trainer's view of the model on this rank and of the ranks' shares of the work.
//
// The Trainer decides what to compute and when. An Engine holds weights, gradients and optimizer
// state, and turns batches into losses and updates, for any ParallelPlan. Without mp_parameters the
// plan is data parallelism: each rank has the whole model, the batches of a step run one after the
// other, and rank 0 writes whole checkpoints. With mp_parameters the ranks are a mesh. Its pipeline
// runs all batches of a step at once, and every rank writes its part of a checkpoint.
//
// Unless stated otherwise, every rank makes the same calls in the same order, and calls block.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/parallel/replay/replayed_communicator.h"
#include "shoal/train/trainer/captured_steps.h"
#include "shoal/train/trainer/early_forward.h"
#include "shoal/train/trainer/microbatches.h"
#include "shoal/train/trainer/optimizer_memory.h"
#include "shoal/train/trainer/shard_files.h"

namespace shoal {

class Engine {
 public:
  // Creates the weights. Refuses impossible layouts on every rank, with a message that states the
  // numbers and a remedy.
  explicit Engine(const EngineParts& parts);

  DataShare data_share() const;
  // Lines for the head of a log: how ranks share the work, and how gradients are summed.
  std::vector<std::string> describe_layout() const;
  std::vector<std::string> describe_gradients() const;
  // Communicator for sums of host values over all ranks between steps. Usable while updates still
  // run.
  collectives::Communicator& beside() { return mesh_.world().host(); }
  // Call when this rank fails: aborts every group of ranks that the engine uses, so that the other
  // ranks end too (Communicator::abort()). Any thread.
  void abort(const std::exception& why) noexcept { mesh_.abort(why); }

  // --- training --------------------------------------------------------------------------------
  // Call before the first step: allocates gradients and the optimizer. May be called again.
  void prepare_training();
  StepDone step(const StepWork& work);
  // Positions of all steps' batches on this rank that layers did not compute: padding.
  std::int64_t left_out() const { return left_out_; }
  // Waits for the steps that step() returned with unknown results, and returns their results in
  // order, each once. Excludes the last step if step() waited for it. Throws like scaler().
  std::vector<StepDone> collect();
  // Tests on this rank whether a step with such a batch fits into memory: runs a forward and a
  // backward that do not change the model. Throws out_of_memory; unavailable if ranks share a
  // model.
  void try_step(const Batch& batch);
  // The f16 loss scale after the last step; 1 for other dtypes. Waits for the device, so do not
  // call it in every step. Throws invalid_argument if gradients have overflowed for too long.
  const nn::LossScaler& scaler();
  void restore_scaler(const nn::LossScalerState& state);
  // Ends updates that run during a forward. Call it before anything except a step reads weights or
  // optimizer state. Returns the gradients' norm if there were such updates.
  std::optional<double> settle();
  std::string describe_capture() { return steps_.describe(); }
  // Statistics of gradient reduction since prepare_training(); nullopt on a device.
  std::optional<parallel::ReducerStatistics> reduced() const;
  // Of this rank's offloaded activations; nullopt without offloading. Replays are not counted.
  std::optional<parallel::OffloadStatistics> offloaded() const;
  nn::Context& context() { return context_; }                      // that of the model's kernels
  int position_parts() const { return model_->position_parts(); }  // divide those of a sample
  bool has_pipeline() const { return mesh_.shape().pp > 1; }
  // Time of a step by phase. Phases are unknown on a device, which runs asynchronously to the host.
  StepClock& clock() { return clock_; }
  bool knows_phases() const { return !on_device(); }

  // --- evaluation ------------------------------------------------------------------------------
  // Number of batches per data index (DataShare) that one evaluate() takes. If
  // evaluates_together(), forwards communicate, so every rank must call evaluate() equally often,
  // with fewer or no batches when it has no more.
  int batches_at_a_time() const;
  bool evaluates_together() const { return !whole(); }
  // True if this rank can run the whole model in context() without evaluate(): alone, or in step
  // with tensor-parallel ranks that compute the same. Waits until the values have arrived.
  bool runs_whole_model();
  // The head's scores for rows [first_row, first_row + n) of batches[batch], f32 [n, ..] in host
  // memory, including padding positions.
  using Scores =
      std::function<void(std::size_t batch, std::int64_t first_row, const Tensor& scores)>;
  // Returns this rank's contribution to the sums over all ranks. `scores`, unless empty, is called
  // for each row on one of the ranks that read it. Either every rank passes `scores` or none does.
  LossSums evaluate(std::span<const Batch> batches, const Scores& scores);
  // The same in two parts, for callers that change the microbatches: batch_cut().pieces of each
  // batch, then those that fill up. `scores` gets those of a microbatch's own rows, filling too.
  std::vector<parallel::Microbatch> cut(std::span<const Batch> batches) const;
  BatchCut batch_cut() const;
  using PieceScores = std::function<void(std::size_t microbatch, const Tensor& scores)>;
  LossSums evaluate(std::span<const parallel::Microbatch> microbatches, const PieceScores& scores);

  // --- checkpoints -----------------------------------------------------------------------------
  // True: every rank writes a part of a checkpoint; false: rank 0 writes all of it.
  bool writes_parts() const { return !whole(); }
  // Copies this rank's data, so that the next step may begin. The returned function writes the copy
  // into a directory of the checkpoint and may run on any thread. Empty if this rank writes
  // nothing.
  using Write = std::function<void(const std::string& directory)>;
  Write snapshot(bool with_optimizer);
  // Loads weights from a Hugging Face directory or a checkpoint of any layout.
  void load_weights(const std::string& directory);
  // Loads the optimizer state after `updates` updates. Throws not_found if the checkpoint has none.
  void load_optimizer(const std::string& directory, std::int64_t updates);
  // Writes the model in Hugging Face's format into an existing directory; rank 0 writes.
  void save_model(const std::string& directory);

 private:
  bool whole() const { return !parts_.arguments.model_parallel; }  // data parallelism only
  int ranks() const { return mesh_.world().size(); }
  bool on_device() const { return !context_.kernels().device().is_cpu(); }
  void build();
  void overlap_forward(parallel::ReducerOptions& options);
  bool leaves_out_padding() const;
  std::vector<parallel::Microbatch> inputs(const StepWork& work);
  void compute(const StepWork& work, std::span<const parallel::Microbatch> microbatches,
               nn::StepOptions update, StepDone& done);
  bool begin_early_updates(const StepWork& work, StepDone& done);

  const EngineParts parts_;
  Task& task_;
  const std::unique_ptr<nn::Chain> task_unit_;  // null: the task is a chain
  nn::Chain& chain_;
  const parallel::ParallelPlan plan_;
  StepClock clock_;
  AskingDispatcher dispatcher_;
  nn::StepRecorder recorder_{dispatcher_};  // context_'s dispatcher
  nn::Context context_;
  nn::StepStateMemory step_state_;
  nn::LossScaler scaler_;  // the rule, and the scale read last; the current scale is in step_state_
  OptimizerMemory optimizer_memory_;
  // Null unless updates run during the next forward.
  std::unique_ptr<EarlyForward> early_;
  // Communicator of all ranks for captured steps, with several ranks on devices; otherwise null.
  const std::unique_ptr<parallel::ReplayedCommunicator> replayed_;
  parallel::ProcessMesh mesh_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::string cut_by_;  // how the model was cut, for the log
  // Set by prepare_training().
  std::unique_ptr<parallel::DistributedOptimizer> optimizer_;
  std::unique_ptr<StepResults> results_;  // on a device
  // Losses of a step's microbatches, in f32, if this rank adds them. Kept because graph replays
  // write to the same memory.
  Tensor losses_;
  std::int64_t step_number_ = 0, left_out_ = 0;
  bool warned_overflow_ = false;
  CapturedSteps steps_;
};

}  // namespace shoal
