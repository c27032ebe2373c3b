// parallelize(model, mesh, options): the one place where a model meets parallelism.
//
// A ParallelModel makes this rank's part of a model (its pipeline stages, its tensor-parallel
// parts), runs training steps on it and sums gradients over the ranks. Whatever the mesh, a step
// computes what one rank would of the whole batch.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/parallel/mesh/process_mesh.h"
#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/parallel/pipeline/executor.h"
#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/tensor/replace.h"

namespace shoal::parallel {

struct ParallelOptions {
  DType dtype = DType::f32;  // of parameters and activations
  ScheduleKind schedule = ScheduleKind::interleaved;
  int microbatches = 1;
  int chunks = 1;               // stages a rank of the pipeline
  int active_microbatches = 0;  // of the interleaved schedule; 0: pipeline ranks + 2
  // Tensor parallelism. prescaled_batch: its ranks see the same samples; else each its own.
  bool prescaled_batch = false;
  bool speed = false;        // optimize=speed: activations duplicated instead of split (prescaled)
  int checkpoint_group = 0;  // nn::forward_units()
  // What checkpoints keep waits in a file, back so many pipeline tasks before its backward.
  bool offload_activations = false;
  int activation_loading_horizon = 4;
  OffloadOptions offload = {};
  // Which units each stage has; none: cut by parameters (count_units()).
  std::optional<Partition> partition;
  ReducerOptions reducer = {};
  Tracer* tracer = nullptr;
};

class ParallelModel {
 public:
  // Collective over the mesh. Replaces modules of `chain` where tensor parallelism does, and gives
  // memory and initial values to this rank's parameters only: `chain` must not be materialised.
  // What cannot be is refused with the numbers and a remedy. All arguments outlive the object.
  ParallelModel(nn::Context& context, nn::Chain& chain, ProcessMesh& mesh,
                const ParallelOptions& options);
  ~ParallelModel();

  // This rank's parameters, each once, in the order of the model. Their gradients live as long as
  // this object; an Optimizer over them ends before it.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  // For an Optimizer over them: true where this rank counts the parameter in the gradients' norm,
  // and the sum of such counts over the ranks of one replica (blocks).
  bool counts_in_norm(const nn::Parameter& parameter) const;
  double sum_over_replica(double value);

  // How many rows of the global batch a rank has in each microbatch, and which: with tensor
  // parallelism and no prescaled_batch the ranks of a tp group share the group's rows.
  int batch_parts() const { return batch_parts_; }
  int batch_part() const { return batch_part_; }
  // Over all ranks that see other samples; for the number that the loss is divided by. Blocks.
  std::int64_t sum_over_samples(std::int64_t value);

  // Forward and backward of as many microbatches as the options say; gradients are then sums over
  // all ranks and microbatches. Returns the loss of all of them, on every rank. Blocks.
  StageLoss train(std::span<const Microbatch> microbatches);
  StageLoss evaluate(std::span<const Microbatch> microbatches);

  const Schedule& schedule() const { return schedule_; }
  const Partition& partition() const { return partition_; }
  const PipelineStatistics& pipeline_statistics() const { return executor_->statistics(); }
  std::string describe() const;  // mesh, schedule and plan, as a table

 private:
  void split_tensors();
  void cut();
  void make_reducers();
  void find_tied();
  void sum_tied();
  StageLoss run(PipelineExecutor& executor, std::span<const Microbatch> microbatches,
                const std::function<void()>& after_last_forward);
  ScheduleOptions schedule_options(bool forward_only) const;

  nn::Context& context_;
  nn::Chain& chain_;
  ProcessMesh& mesh_;
  ParallelOptions options_;
  ActivationSplit split_ = ActivationSplit::none;
  int batch_parts_ = 1, batch_part_ = 0;
  std::vector<UnitCost> units_;
  Schedule schedule_, evaluation_;
  Partition partition_;
  std::unique_ptr<Offloader> offloader_;  // before the stages, whose tapes refer to it
  std::map<int, std::unique_ptr<ChainStage>> stages_;
  std::unique_ptr<PipelineExecutor> executor_, evaluator_;
  std::vector<nn::Parameter*> parameters_;
  // Gradients of parts are summed over rdp; of the rest over dp where tensor-parallel ranks hold
  // different activations. Groups of their own: which bucket goes when is each rank's matter.
  std::unique_ptr<collectives::Communicator> rdp_, dp_;
  std::unique_ptr<Reducer> over_rdp_, over_dp_;
  // A parameter that stages on several ranks hold: summed over them, counted on the first.
  struct Tied {
    nn::Parameter* parameter;
    std::vector<int> ranks;  // of the pipeline, ascending
    collectives::Communicator* group;
  };
  std::vector<Tied> tied_;
  std::vector<std::unique_ptr<collectives::Communicator>> tied_groups_;
};

}  // namespace shoal::parallel
