// SMP's DistributedOptimizer: updates a ParallelModel with any mesh and sharding.
//
//   ParallelModel model(context, chain, mesh, options);
//   DistributedOptimizer optimizer(model, nn::adamw({.weight_decay = 0.1}));
//   each step: microbatches' input.loss.loss_scale = optimizer.loss_scale() / targets of all ranks;
//              model.train(microbatches); optimizer.step(state, {.learning_rate = 1e-3});
//
// It updates f32 values: masters if the model computes in bf16 or f16, else the parameters. With
// ParallelOptions::rounding_seed it updates bf16 values. Every rank creates one and makes the same
// calls in the same order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/optim/loss_scaler.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/apply/model_sums.h"
#include "shoal/parallel/apply/parallel_model.h"

namespace shoal::parallel {

struct DistributedOptimizerOptions {  // SMP's arguments and defaults
  double static_loss_scale = 1;
  bool dynamic_loss_scale = false;  // true: static_loss_scale is ignored
  // Defaults: initial scale 2^32, factor 2, window 1000, minimum 1, delayed_shift 1.
  nn::LossScalerOptions dynamic_loss_args = {};
};

// This rank's part of one tensor of a checkpoint.
struct StateRun {
  const nn::Parameter* parameter = nullptr;
  nn::RuleState state;     // its name is empty for the parameter's values
  std::int64_t first = 0;  // the run is elements [first, first + tensor.count()) of the parameter,
                           // row-major; if the state is of means, all of nn::state_shape()
  // Contiguous f32 memory of the optimizer, to save from or load into. If the parameter is frozen
  // or has no master: its value, in the compute dtype.
  Tensor tensor;
  bool writes = false;  // true on exactly one rank of the mesh for each element
};

class DistributedOptimizer {
 public:
  // Steps `rule` on this rank's elements. `states`: memory for the rule's states; null: the memory
  // of the model's context. `model` and `states` must outlive the object.
  DistributedOptimizer(ParallelModel& model, std::unique_ptr<nn::UpdateRule> rule,
                       const DistributedOptimizerOptions& options = {},
                       MemoryResource* states = nullptr);

  // Factor for the losses of the next train(); 1 without scaling.
  double loss_scale() const { return scaler_.scale(); }
  // Call after train(). Clips by the norm over all parameters of the model, which has the same bits
  // on every rank. If the norm or one rank's share of it is not finite, all ranks skip the step.
  // Then updates the loss scale. With sharding, gathers of the new values may still be running when
  // this returns; train() and evaluate() wait for the values they read. Blocks.
  nn::StepOutcome step(kernels::StepState& state, nn::StepOptions options);

  // The step on a device without host waits. Call set_step() with the step's settings, then
  // ParallelModel::queue_train(), then queue_step(). Losses are scaled by `state`
  // (LossOptions::state), whose loss scale follows `options.scaling`; loss_scale() and scaler() are
  // not used. If the step is skipped, rule().norm() is not finite; the (unchanged) values are still
  // published. queue_step() may be captured in a graph.
  void set_step(kernels::StepState& state, const nn::StepOptions& options);
  void queue_step(kernels::StepState& state, const nn::StepOptions& options);

  // For checkpoints: masters and the rule's states, in no particular order. Without sharding they
  // are whole parameters; with sharding, this rank's runs. Every rank loads all of its entries,
  // whichever rank wrote them.
  std::vector<StateRun> state_runs() const;
  // Call after loading into state_runs(): rounds masters into values and gathers them. Blocks.
  void refresh();
  // Its state() and restore() save and load the loss scale in checkpoints.
  nn::LossScaler& scaler() { return scaler_; }

  nn::Optimizer& rule() { return rule_; }

 private:
  ParallelModel& model_;
  ModelSums sums_;
  nn::LossScaler scaler_;
  nn::Optimizer rule_;
};

}  // namespace shoal::parallel
