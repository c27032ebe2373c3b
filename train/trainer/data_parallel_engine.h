// The engine in which every rank has the whole model and its own samples. Gradients are summed over
// the ranks.
#pragma once

#include <map>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/nn/capture/batch_size.h"
#include "shoal/nn/capture/staged_inputs.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/parallel/activation/offload.h"
#include "shoal/train/trainer/early_forward.h"
#include "shoal/train/trainer/engine.h"
#include "shoal/train/trainer/late_steps.h"
#include "shoal/train/trainer/optimizer_memory.h"

namespace shoal {

class DataParallelEngine final : public Engine {
 public:
  explicit DataParallelEngine(const EngineParts& parts);

  DataShare data_share() const override;
  std::vector<std::string> describe_layout() const override;
  std::vector<std::string> describe_gradients() const override;
  collectives::Communicator& beside() override;
  void abort(const std::exception& why) noexcept override;

  void prepare_training() override;
  StepDone step(const StepWork& work) override;
  std::vector<StepDone> collect() override;
  void try_step(const Batch& batch) override;
  const nn::LossScaler& scaler() override;
  void restore_scaler(const nn::LossScalerState& state) override;
  std::optional<double> settle() override;
  std::string describe_capture() override;
  std::optional<parallel::ReducerStatistics> reduced() const override;  // on the host
  std::optional<parallel::OffloadStatistics> offloaded() const override {
    return offloader_ ? std::optional(offloader_->statistics()) : std::nullopt;
  }
  bool knows_phases() const override { return on_cpu(); }

  LossSums evaluate(std::span<const Batch> batches, const Scores& scores) override;

  bool writes_parts() const override { return false; }
  Write snapshot(bool with_optimizer) override;
  void load_weights(const std::string& directory) override;
  void load_optimizer(const std::string& directory, std::int64_t updates) override;
  void save_model(const std::string& directory) override;

 private:
  int ranks() const { return parts_.trainer.communicator->size(); }
  bool on_cpu() const { return context_.kernels().device().is_cpu(); }
  void overlap_forward(parallel::ReducerOptions& options);
  bool captures() const;
  bool offloads_between_graphs() const;  // then no step is captured
  void begin_capture();
  std::string kind_of(const StepWork& work, std::span<const nn::ChainInput> inputs) const;
  // Evaluates `input` and passes the scores of `batch` to `scores`.
  nn::LossOutput score(const nn::ChainInput& input, std::size_t batch, const Scores& scores);
  // The model's inputs for the step's batches, in the kernels' memory.
  std::vector<nn::ChainInput> inputs(const StepWork& work);
  // `reduces`: the last backward hands gradients to the reducer.
  void forward_backward(const StepWork& work, std::span<const nn::ChainInput> inputs, bool reduces);
  double loss_sum() const;  // of the last step's microbatches on this rank; waits for it
  nn::StepOutcome update(const StepWork& work, double& loss);
  nn::StepOptions step_options(const StepWork& work);
  // Captures and runs a step of this kind with weight gradients beside backward, if in_line_ knows
  // the memory of its in-line step. False: nothing was queued, and the step must be captured in
  // line.
  bool queue_with_branch(const std::string& kind, std::span<const nn::ChainInput> inputs,
                         const std::function<void()>& step);
  // On a device: queues or captures the whole step and waits for nothing.
  void queue_step(const StepWork& work, std::span<const nn::ChainInput> inputs);

  const EngineParts parts_;
  Task& task_;
  AskingDispatcher dispatcher_;
  nn::StepRecorder recorder_{dispatcher_};  // context_'s dispatcher
  nn::Context context_;
  nn::StepStateMemory step_state_;
  nn::LossScaler scaler_;  // rule and last read value; the scale itself is in step_state_
  OptimizerMemory optimizer_memory_;
  std::unique_ptr<nn::MasterWeights> weights_;
  nn::HostWork host_work_;  // for captured steps
  // Set by prepare_training().
  std::unique_ptr<parallel::Reducer> reducer_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  // If updates run during the next forward: the updates, and a split of the communicator for
  // everything except gradients, whose sums may still be running. Otherwise null.
  std::unique_ptr<EarlyForward> early_;
  std::unique_ptr<collectives::Communicator> beside_;
  // Losses of a step's microbatches, f32 [gradient_accumulation_steps]: graphs write them again.
  Tensor losses_;
  std::size_t microbatches_ = 0;  // of the last step
  nn::RecordedBatch last_batch_;  // one microbatch of the last step, if steps are captured
  // On a device: results of steps, and the last cross-rank sum of the step being queued.
  std::unique_ptr<LateSteps> late_;
  collectives::WorkPtr last_sum_;
  std::unique_ptr<parallel::Offloader> offloader_;  // null: no offloading
  // For captured steps of one rank, while its tensors fit into memory; otherwise null.
  std::unique_ptr<nn::WeightBranch> branch_;
  std::map<std::string, nn::MemorySequence> in_line_;  // by kind: memory without the branch
  std::string last_kind_;                              // of the last step
  bool ran_beside_ = false;                            // the last step used the branch
  bool update_queued_ = false;                         // for the step being queued
  std::unique_ptr<nn::StepCapture> capture_;           // null: steps run call by call
  int captures_made_ = 0;                              // StepCaptures created so far
  bool step_open_ = false;                             // the last step failed before its end
  // Inputs of steps by their shapes: graphs read them again. Empty if kernels run on the host.
  std::map<std::string, nn::StagedInputs> staged_;
  std::int64_t step_number_ = 0;
  bool warned_overflow_ = false;
};

}  // namespace shoal
