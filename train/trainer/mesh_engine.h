// The engine in which the ranks are a mesh of replicas, pipeline stages and tensor-parallel parts:
// several ranks hold one model (parallel/apply).
//
// A step has gradient_accumulation_steps batches, each cut into `microbatches`. The pipeline runs
// all of them at once: accumulation adds microbatches, not pipeline steps. If an epoch ends with
// fewer rows or batches, rows without targets are added, which change no loss and no gradient.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/capture/batch_size.h"
#include "shoal/nn/capture/staged_inputs.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/parallel/mesh/process_mesh.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/train/trainer/engine.h"
#include "shoal/train/trainer/held_numbers.h"
#include "shoal/train/trainer/late_steps.h"
#include "shoal/train/trainer/optimizer_memory.h"

namespace shoal {

class MeshEngine final : public Engine {
 public:
  // Refuses impossible layouts with the numbers and a remedy, on every rank alike.
  explicit MeshEngine(const EngineParts& parts);

  DataShare data_share() const override;
  std::vector<std::string> describe_layout() const override;
  std::vector<std::string> describe_gradients() const override;
  collectives::Communicator& beside() override { return mesh_.world().host(); }
  void abort(const std::exception& why) noexcept override { mesh_.abort(why); }

  void prepare_training() override;
  StepDone step(const StepWork& work) override;
  std::vector<StepDone> collect() override;
  const nn::LossScaler& scaler() override;
  void restore_scaler(const nn::LossScalerState& state) override;
  std::optional<parallel::ReducerStatistics> reduced() const override {  // on the host
    if (on_device()) return std::nullopt;
    return model_->gradient_statistics();
  }
  std::optional<parallel::OffloadStatistics> offloaded() const override {
    if (!plan_.activations.offload) return std::nullopt;
    return model_->offload_statistics();
  }
  bool has_pipeline() const override { return mesh_.shape().pp > 1; }
  bool knows_phases() const override { return !on_device(); }
  std::string describe_capture() override;

  int batches_at_a_time() const override;
  bool evaluates_together() const override { return true; }
  LossSums evaluate(std::span<const Batch> batches, const Scores& scores) override;

  bool writes_parts() const override { return true; }
  Write snapshot(bool with_optimizer) override;
  void load_weights(const std::string& directory) override;
  void load_optimizer(const std::string& directory, std::int64_t updates) override;
  void save_model(const std::string& directory) override;

 private:
  bool on_device() const { return !context_.kernels().device().is_cpu(); }
  // On a device: queues the whole step. Waits only if `work` requires it.
  StepDone queue_step(const StepWork& work, std::span<const parallel::Microbatch> microbatches);
  StepDone host_step(const StepWork& work, std::span<const parallel::Microbatch> microbatches);
  bool captures() const;
  std::string why_not_captured() const;  // empty: steps can be captured
  void begin_capture();
  std::string kind_of(const StepWork& work,
                      std::span<const parallel::Microbatch> microbatches) const;
  // True if the host reads targets: the head computes only rows with a target, or samples that
  // tensor-parallel ranks divide. The engine keeps host copies then, and no graph can hold the
  // step.
  bool reads_on_host() const;
  // Chooses the cut of the model: that of the resumed checkpoint, or one by unit costs on the run's
  // own samples.
  void prepare_cut(parallel::ParallelOptions& options);
  std::string kept_cut() const;  // "3,2,1" of that checkpoint, on every rank; empty: measure
  std::optional<parallel::Microbatch> trace() const;  // nullopt: there is no training
  void build();
  // Rows of one rank's microbatch, for a batch of `batch_rows` after filling up.
  std::int64_t rows_of_part(std::int64_t batch_rows) const;
  // This rank's part of the batches: as many microbatches as the pipeline runs.
  std::vector<parallel::Microbatch> cut(std::span<const Batch> batches, std::int64_t first_ordinal,
                                        const nn::LossOptions& loss) const;
  // On a device: uploads the inputs of a step's microbatches once, not at each use.
  void upload(std::vector<parallel::Microbatch>& microbatches);

  const EngineParts parts_;
  const parallel::ParallelPlan& plan_;  // of parts_.arguments
  Task& task_;
  nn::DirectDispatcher dispatcher_;
  nn::StepRecorder recorder_{dispatcher_};  // context_'s dispatcher
  nn::Context context_;
  nn::StepStateMemory step_state_;
  OptimizerMemory optimizer_memory_;
  nn::HostWork host_work_;  // for captured steps
  // Inputs of steps by their shapes: graphs read them again. Empty if kernels run on the host.
  std::map<std::string, nn::StagedInputs> staged_;
  parallel::ProcessMesh mesh_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::string cut_by_;                                         // how the model was cut, for the log
  std::unique_ptr<parallel::DistributedOptimizer> optimizer_;  // set by prepare_training()
  // On a device: rule and last read value of the loss scale, which is in step_state_; and results
  // of steps, set by prepare_training(). On the host optimizer_ scales.
  nn::LossScaler scaler_;
  std::unique_ptr<LateSteps> late_;
  Tensor losses_;  // f32, losses of a step's microbatches if this rank adds them: graphs write them
  std::unique_ptr<nn::StepCapture> capture_;  // null: steps run call by call
  nn::RecordedBatch last_microbatch_;         // the first of the last step
  int captures_made_ = 0;                     // StepCaptures created so far
  bool step_open_ = false;                    // the last step failed before its end
};

}  // namespace shoal
