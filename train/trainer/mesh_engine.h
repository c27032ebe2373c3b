// The ranks are a mesh of replicas, pipeline stages and tensor-parallel parts: one model lies on
// several of them (parallel/apply).
//
// A step has gradient_accumulation_steps batches, each cut into `microbatches`, and the pipeline
// runs all of them at once: accumulation is more microbatches, not more steps of the pipeline.
// Where an epoch ends with fewer rows or batches, rows without targets fill up, which change no
// loss and no gradient.
#pragma once

#include "shoal/nn/autograd/context.h"
#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/parallel/apply/smp_parameters.h"
#include "shoal/parallel/mesh/process_mesh.h"
#include "shoal/train/trainer/engine.h"
#include "shoal/train/trainer/held_numbers.h"

namespace shoal {

class MeshEngine final : public Engine {
 public:
  // Refuses what cannot be with the numbers and a remedy, on every rank alike.
  explicit MeshEngine(const EngineParts& parts);

  DataShare data_share() const override;
  std::vector<std::string> describe_layout() const override;
  std::vector<std::string> describe_gradients() const override;
  collectives::Communicator& beside() override { return mesh_.world(); }

  void prepare_training() override;
  StepDone step(const StepWork& work) override;
  nn::LossScaler& scaler() override;

  int batches_at_a_time() const override;
  bool evaluates_together() const override { return true; }
  LossSums evaluate(std::span<const Batch> batches) override;

  bool writes_parts() const override { return true; }
  Write snapshot(bool with_optimizer) override;
  void load_weights(const std::string& directory) override;
  void load_optimizer(const std::string& directory, std::int64_t updates) override;
  void save_model(const std::string& directory) override;

 private:
  // This rank's part of the batches, as many microbatches as the pipeline has.
  std::vector<parallel::Microbatch> cut(std::span<const Batch> batches, std::int64_t first_ordinal,
                                        const nn::LossOptions& loss) const;
  // What this rank holds, or of what several ranks hold what it writes.
  enum class Which { held, written };
  std::vector<HeldNumbers> weights(Which which) const;
  std::vector<HeldNumbers> moments(Which which) const;

  const EngineParts parts_;
  const parallel::SmpParameters smp_;
  Task& task_;
  nn::DirectDispatcher dispatcher_;
  nn::Context context_;
  nn::StepStateMemory step_state_;
  parallel::ProcessMesh mesh_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::unique_ptr<parallel::DistributedOptimizer> optimizer_;  // from prepare_training() on
};

}  // namespace shoal
