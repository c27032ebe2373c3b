// parallelize(model, mesh, options): applies a parallel plan to a model.
//
// A ParallelModel builds this rank's part of a model: its pipeline stages, its tensor-parallel part
// of them, and its shard of their state. It runs training steps and sums gradients over the ranks.
// On any mesh, a step computes what one rank would compute from the whole batch.
// DistributedOptimizer updates the parameters.
#pragma once

#include <functional>
#include <memory>
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
  // Collective over the mesh. Replaces modules of `chain` for tensor parallelism. Allocates and
  // initialises only this rank's parameters: `chain` must not be materialised. Throws for an
  // impossible layout, with the numbers and a remedy. All arguments must outlive the object.
  ParallelModel(nn::Context& context, nn::Chain& chain, ProcessMesh& mesh,
                const ParallelOptions& options);
  ~ParallelModel();

  // Allocates gradients, once. DistributedOptimizer and train() call it. Collective.
  void prepare_training();

  // This rank's parameters, each once, in the order of the model. Their gradients (when sharded,
  // their values too) live as long as this object. An Optimizer over them must be destroyed first.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  bool sharded() const { return options_.plan.sharding.level > 0; }
  const ProcessMesh& mesh() const { return mesh_; }
  const ParallelOptions& options() const { return options_; }
  const ParallelPlan& plan() const { return options_.plan; }

  KeptElements kept() const { return state_->kept(); }  // computed, gaps included (layout_memory.h)

  // --- for DistributedOptimizer ----------------------------------------------------------------
  nn::Context& context() const { return context_; }
  // The elements this rank updates, in the order of parameters(): with sharding, its shard of each.
  std::vector<OwnedRun> owned() const { return state_->owned(); }
  std::vector<OwnedRun> frozen() const;  // whole, on every rank that holds them
  // True if this rank holds part of the first copy of the state.
  bool is_first_copy() const { return state_->is_first_copy(); }
  // Parameters of the whole model, over all ranks, by OwnedRun::number. Most have no values here.
  const std::vector<nn::Parameter*>& parameters_of_all() const { return parameters_of_all_; }
  // Call after an update: starts to send the new values. train() and evaluate() wait unit by unit.
  void publish() { state_->publish(); }
  void wait_for_values() { state_->wait(); }  // before reading values in any other way
  void refresh();                             // call after writing into masters; blocks

  // Number of parts that each microbatch's rows are divided into, and the index of this rank's
  // part. With tensor parallelism and no prescaled_batch, the ranks of a tp group share the rows.
  int batch_parts() const { return batch_parts_; }
  // Parts of the positions of a sample, which must divide them.
  int position_parts() const { return split_ == ActivationSplit::sequence ? mesh_.shape().tp : 1; }
  int batch_part() const { return batch_part_; }

  // Forward and backward of the plan's number of microbatches. Afterwards gradients are sums over
  // all ranks and microbatches. Returns the total loss on every rank. Blocks.
  StageLoss train(std::span<const Microbatch> microbatches);
  // train() on a device without host waits: all work is queued on context.stream. `losses`, f32
  // [microbatches] on the device, receives this rank's contributions to the total loss, not yet
  // summed. Pass an undefined tensor if adds_losses() is false.
  void queue_train(std::span<const Microbatch> microbatches, const Tensor& losses);
  bool adds_losses() const;
  // queue_train() in two parts, also with host kernels. Each run of the pipeline takes as many
  // microbatches as plan.pipeline.microbatches; the last run hands gradients over for reduction.
  // `after_forward` is called once, after the forwards of the first run.
  void forward_backward(std::span<const Microbatch> microbatches, const Tensor& losses,
                        const std::function<void()>& after_forward = {});
  void finish_gradients();
  // Runs forward and backward on this rank only, to test whether memory suffices. The passes must
  // not communicate.
  void try_step(std::span<const Microbatch> microbatches);
  // The Reducer of all gradients; null if there are several, or if gradients are sharded.
  Reducer* reducer() { return state_->reducer(); }
  // Discards a step whose capture failed: none of its work has begun. May be called after
  // queue_train() or in the middle of the optimizer's queue_step(). Another step may follow.
  void abandon_step();
  // `logits`: receives the scores of each microbatch's rows (Chain::head_logits()) on one of the
  // ranks that read those rows; empty on the others. evaluate_own() returns this rank's part of the
  // loss; it waits for other ranks only if the plan's passes communicate.
  StageLoss evaluate(std::span<const Microbatch> microbatches,
                     std::vector<Tensor>* logits = nullptr);
  StageLoss evaluate_own(std::span<const Microbatch> microbatches,
                         std::vector<Tensor>* logits = nullptr);

  const Schedule& schedule() const { return schedule_; }
  const Partition& partition() const { return partition_; }
  const std::vector<UnitCost>& units() const { return units_; }
  // Reductions of gradients over all mesh axes except those inside a pass of the model.
  ReducerStatistics gradient_statistics() const { return state_->statistics(); }
  OffloadStatistics offload_statistics() const;  // all zero without offloading
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
  void pass(std::span<const Microbatch> microbatches,
            const std::function<void(std::int64_t first)>& after_forward);
  void drop_tapes();
  StageLoss own_loss() const;
  StageLoss sum_over_ranks(const StageLoss& own);
  bool losses_differ_over_tp() const;

  nn::Context& context_;
  nn::Chain& chain_;
  ProcessMesh& mesh_;
  ParallelOptions options_;
  bool prepared_ = false;
  bool trying_ = false;  // true in try_step(): a failure must not abort other ranks
  ActivationSplit split_ = ActivationSplit::none;
  int batch_parts_ = 1, batch_part_ = 0;
  std::vector<UnitCost> units_;
  Schedule schedule_, evaluation_;
  Partition partition_;
  std::vector<TiedSet> tied_;
  bool has_partial_ = false;  // some parameter of the whole model has StageParameter::partial
  std::vector<StageParameter> stage_parameters_;
  std::vector<nn::Parameter*> parameters_of_all_;
  // Declared before the stages, whose tapes refer to it.
  std::unique_ptr<ModelState> state_;
  std::unique_ptr<Offloader> offloader_;
  std::map<int, std::unique_ptr<ChainStage>> stages_;
  std::unique_ptr<PipelineExecutor> executor_, evaluator_;
  std::vector<nn::Parameter*> parameters_;
};

}  // namespace shoal::parallel
