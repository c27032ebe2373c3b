// The ranks are a mesh of replicas, pipeline stages and tensor-parallel parts: one model lies on
// several of them (parallel/apply).
//
// A step has gradient_accumulation_steps batches, each cut into `microbatches`, and the pipeline
// runs all of them at once: accumulation is more microbatches, not more steps of the pipeline.
// Where an epoch ends with fewer rows or batches, rows without targets fill up, which change no
// loss and no gradient.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "shoal/nn/autograd/context.h"
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
  // Refuses what cannot be with the numbers and a remedy, on every rank alike.
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
  // On a device: all of the step, and nothing is waited for but where `work` says so.
  StepDone queue_step(const StepWork& work, std::span<const parallel::Microbatch> microbatches);
  StepDone host_step(const StepWork& work, std::span<const parallel::Microbatch> microbatches);
  bool captures() const;
  std::string why_not_captured() const;  // empty: steps can be
  void begin_capture();
  std::string kind_of(const StepWork& work,
                      std::span<const parallel::Microbatch> microbatches) const;
  // The head computes rows with a target alone, or samples that tensor-parallel ranks share out:
  // the host reads its targets then, which it keeps, and which no graph holds.
  bool reads_on_host() const;
  // How the model is cut: as the checkpoint that is continued, or by what units take on the run's
  // own samples.
  void prepare_cut(parallel::ParallelOptions& options);
  std::string kept_cut() const;  // "3,2,1" of that checkpoint, on every rank; empty: measure
  std::optional<parallel::Microbatch> trace() const;  // none: nothing is trained
  void build();
  // Of a batch of `batch_rows`, filled up: how many rows a microbatch of one rank has.
  std::int64_t rows_of_part(std::int64_t batch_rows) const;
  // This rank's part of the batches, as many microbatches as the pipeline has.
  std::vector<parallel::Microbatch> cut(std::span<const Batch> batches, std::int64_t first_ordinal,
                                        const nn::LossOptions& loss) const;
  // On a device, what stages read of a step's microbatches goes there once, not at each use.
  void upload(std::vector<parallel::Microbatch>& microbatches);
  // What this rank holds, or of what several ranks hold what it writes.
  enum class Which { held, written };
  std::vector<HeldNumbers> weights(Which which) const;
  std::vector<HeldNumbers> moments(Which which) const;

  const EngineParts parts_;
  const parallel::ParallelPlan& plan_;  // of parts_.arguments
  Task& task_;
  nn::DirectDispatcher dispatcher_;
  nn::StepRecorder recorder_{dispatcher_};  // what context_ runs operations by
  nn::Context context_;
  nn::StepStateMemory step_state_;
  OptimizerMemory optimizer_memory_;
  nn::HostWork host_work_;  // of captured steps
  // Inputs of steps, by their shapes: graphs read them again. None where kernels are the host's.
  std::map<std::string, nn::StagedInputs> staged_;
  parallel::ProcessMesh mesh_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::string cut_by_;                                         // how, for the log
  std::unique_ptr<parallel::DistributedOptimizer> optimizer_;  // from prepare_training() on
  // On a device: the rule of the loss scale, and the scale as it was last read, for it lives in
  // step_state_; what steps came to, from prepare_training() on. On the host optimizer_ scales.
  nn::LossScaler scaler_;
  std::unique_ptr<LateSteps> late_;
  Tensor losses_;  // of a step's microbatches, f32, where this rank adds them: graphs write them
  std::unique_ptr<nn::StepCapture> capture_;  // null: steps run call by call
  nn::RecordedBatch last_microbatch_;         // the first of the last step
  int captures_made_ = 0;                     // of these
  bool step_open_ = false;                    // the last one failed between its two ends
};

}  // namespace shoal
