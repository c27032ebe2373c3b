// parallelize(model, mesh, options): the one place where a model meets parallelism.
//
// A ParallelModel makes this rank's part of a model (its pipeline stages, its tensor-parallel
// parts, its shard of both), runs training steps on it and sums gradients over the ranks. Whatever
// the mesh, a step computes what one rank would of the whole batch. DistributedOptimizer steps it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/apply/model_state.h"
#include "shoal/parallel/apply/parallel_options.h"
#include "shoal/parallel/mesh/process_mesh.h"
#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/parallel/pipeline/executor.h"
#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/tensor/replace.h"

namespace shoal::parallel {

class ParallelModel {
 public:
  // Collective over the mesh. Replaces modules of `chain` where tensor parallelism does, and gives
  // memory and initial values to this rank's parameters only: `chain` must not be materialised.
  // What cannot be is refused with the numbers and a remedy. All arguments outlive the object.
  ParallelModel(nn::Context& context, nn::Chain& chain, ProcessMesh& mesh,
                const ParallelOptions& options);
  ~ParallelModel();

  // Gives gradients memory; once, later calls do nothing. DistributedOptimizer and train() call it:
  // who only evaluates has none. Collective.
  void prepare_training();

  // This rank's parameters, each once, in the order of the model. Their gradients live as long as
  // this object (sharded: so do their values); an Optimizer over them ends before it.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  bool sharded() const { return options_.plan.sharding.level > 0; }
  const ProcessMesh& mesh() const { return mesh_; }
  const ParallelOptions& options() const { return options_; }
  const ParallelPlan& plan() const { return options_.plan; }

  // Of its plan, gaps included (layout_memory.h).
  KeptElements kept() const { return state_->kept(); }

  // --- for DistributedOptimizer ----------------------------------------------------------------
  // What this rank updates, in that order: with sharding its shard of each parameter.
  std::vector<OwnedRun> owned() const { return state_->owned(); }
  std::vector<OwnedRun> frozen() const;  // whole, on every rank that holds them
  // nn::StepOptions::sum_over_shards: of all gradients of the model, from each rank's of what
  // Segment::in_norm says counts there. Of several copies the first counts. The same bits on every
  // rank; where one rank's is not finite, whichever copy it is of, not finite on all. Blocks.
  double sum_squares(double mine);
  // The same of an f64 [1] of a device, queued on `stream` (StepOptions::sum_in_place). Waits for
  // nothing that the device does. `began` is given the sum's Work, in each replay of a captured
  // step too; not called where there is one rank.
  void sum_squares_in_place(const Tensor& mine, Stream stream,
                            const std::function<void(collectives::WorkPtr)>& began);
  // nn::StepOptions::sum_parts where ranks have parts of parameters: `sums` are those of owned(),
  // in that order; afterwards of the whole parameter each is of, on every rank the same bits.
  // Blocks.
  void sum_over_parts(std::span<nn::SquareSums> sums);
  bool has_parts() const { return mesh_.shape().tp > 1 || sharded(); }  // alike on every rank
  // After an update: starts to give the other ranks what changed. train() and evaluate() wait unit
  // by unit; who reads values otherwise calls wait_for_values() first.
  void publish() { state_->publish(); }
  void wait_for_values() { state_->wait(); }
  // After somebody wrote into masters. Blocks.
  void refresh();

  // How many rows of the global batch a rank has in each microbatch, and which: with tensor
  // parallelism and no prescaled_batch the ranks of a tp group share the group's rows.
  int batch_parts() const { return batch_parts_; }
  int batch_part() const { return batch_part_; }
  // Over all ranks that see other samples; for the number that the loss is divided by. Blocks.
  std::int64_t sum_over_samples(std::int64_t value);

  // Forward and backward of as many microbatches as the options say; gradients are then sums over
  // all ranks and microbatches. Returns the loss of all of them, on every rank. Blocks.
  StageLoss train(std::span<const Microbatch> microbatches);
  // train() of a device whose host waits for nothing: all of it is queued on context.stream.
  // `losses`, f32 [microbatches] there, becomes what this rank adds to the loss of all, in no sum
  // yet; undefined where it adds nothing.
  void queue_train(std::span<const Microbatch> microbatches, const Tensor& losses);
  bool adds_losses() const;
  // Between queue_train() and DistributedOptimizer's queue_step(), or in the middle of one: of a
  // step that was to be captured and could not be. Nothing of it has begun; the next may.
  void abandon_step();
  // `logits`: takes the scores of each microbatch's rows (Chain::head_logits()) on one of the ranks
  // that read them; empty on the others.
  StageLoss evaluate(std::span<const Microbatch> microbatches,
                     std::vector<Tensor>* logits = nullptr);

  const Schedule& schedule() const { return schedule_; }
  const Partition& partition() const { return partition_; }
  const std::vector<UnitCost>& units() const { return units_; }
  const PipelineStatistics& pipeline_statistics() const { return executor_->statistics(); }
  // Gradients' way over the ranks, of all axes but those inside a pass of the model.
  ReducerStatistics gradient_statistics() const { return state_->statistics(); }
  OffloadStatistics offload_statistics() const;  // all zero where nothing is offloaded
  std::string describe() const;                  // mesh, schedule and plan, as a table

 private:
  void split_tensors();
  void cut();
  void find_parameters();
  void make_state();
  ChainStageOptions stage_options() const;
  void make_stages();
  void run(PipelineExecutor& executor, std::span<const Microbatch> microbatches,
           const std::function<void()>& after_last_forward, bool scores = false);
  StageLoss loss_of_all();
  // Each rank of a tensor-parallel group has a loss of its own samples.
  bool losses_differ_over_tp() const;

  nn::Context& context_;
  nn::Chain& chain_;
  ProcessMesh& mesh_;
  ParallelOptions options_;
  bool prepared_ = false;
  ActivationSplit split_ = ActivationSplit::none;
  int batch_parts_ = 1, batch_part_ = 0;
  std::vector<UnitCost> units_;
  Schedule schedule_, evaluation_;
  Partition partition_;
  std::vector<TiedSet> tied_;
  std::vector<HeldParameter> held_;
  int parameters_of_all_ = 0;  // ranks: of the whole model
  // Before the stages, whose tapes refer to them.
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<Offloader> offloader_;
  std::map<int, std::unique_ptr<ChainStage>> stages_;
  std::unique_ptr<PipelineExecutor> executor_, evaluator_;
  std::vector<nn::Parameter*> parameters_;
};

}  // namespace shoal::parallel
