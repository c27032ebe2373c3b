// SMP's DistributedOptimizer: one update of a ParallelModel, whatever its mesh and sharding.
//
//   ParallelModel model(context, chain, mesh, options);
//   DistributedOptimizer optimizer(model, [&](std::vector<nn::Segment> segments) {
//     return nn::make_adamw(kernels, memory, std::move(segments), {.weight_decay = 0.1});
//   });
//   each step: microbatches' input.loss.loss_scale = optimizer.loss_scale() / targets of all ranks;
//              model.train(microbatches); optimizer.step(state, {.learning_rate = 1e-3});
//
// What is updated is f32: masters where the model computes in bf16 or f16, else the values; or,
// with ParallelOptions::rounding_seed, bf16 values. Every rank makes one and makes the same calls
// in the same order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/nn/optim/loss_scaler.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/apply/parallel_model.h"

namespace shoal::parallel {

struct DistributedOptimizerOptions {  // SMP's arguments and defaults
  double static_loss_scale = 1;
  bool dynamic_loss_scale = false;  // then static_loss_scale is passed over
  // Scale 2^32 at first, factor 2, window 1000, at least 1, delayed_shift 1.
  nn::LossScalerOptions dynamic_loss_args = {};
};

struct UpdateOptions {
  double learning_rate = 0;
  double max_gradient_norm = 0;  // 0: no clipping
  // Of nn::StepOptions, for set_step() and queue_step().
  std::int64_t update = -1;
  float inverse_targets = 1;
  kernels::LossScaleRule scaling = {};
};

// What this rank keeps of one tensor that a checkpoint has.
struct HeldRun {
  const nn::Parameter* parameter = nullptr;
  std::string state;       // "exp_avg", ...; empty: the parameter's own numbers
  std::int64_t first = 0;  // element of the parameter, row-major; tensor.count() from there
  // f32, contiguous, the optimizer's memory: to write out or to load into. Of a parameter that is
  // frozen or has no master its value, in the compute dtype.
  Tensor tensor;
  bool writes = false;  // over all ranks of the mesh, true for each element exactly once
};

class DistributedOptimizer {
 public:
  // Makes the rule of what this rank updates: nn::make_adamw(...).
  using Make = std::function<std::unique_ptr<nn::Optimizer>(std::vector<nn::Segment>)>;
  // `model` outlives the object.
  DistributedOptimizer(ParallelModel& model, const Make& make,
                       const DistributedOptimizerOptions& options = {});

  // What the next train()'s losses are to be multiplied with; 1 without scaling.
  double loss_scale() const { return scaler_.scale(); }
  // After train(). Norm over all parameters of the model, the same bits on every rank, and clipping
  // by it; where it is not finite, or one rank's share of it, all ranks skip the step. Then the
  // loss scale follows. With sharding, new values are on their way when this returns; train() and
  // evaluate() wait for what they read. Blocks.
  nn::StepOutcome step(kernels::StepState& state, const UpdateOptions& options);

  // On a device a step of which the host waits for nothing, between them ParallelModel's
  // queue_train(): what differs from step to step, then the work. Losses are scaled by `state`
  // (LossOptions::state), whose loss scale follows the `scaling` of the options: loss_scale() and
  // scaler() have no part in it. Where the step is left out, rule().norm() is not finite, and
  // values are given to the other ranks all the same. Both may be captured in a graph, replays of
  // which leave take_last_sum() too.
  void set_step(kernels::StepState& state, const UpdateOptions& options);
  void queue_step(kernels::StepState& state, const UpdateOptions& options);
  // The last of the step's sums over ranks: who waits for the stream waits for that before, which
  // has a deadline. Null: there is one rank.
  collectives::WorkPtr take_last_sum() { return std::move(last_sum_); }

  // For checkpoints: masters and the rule's states, in an order of no meaning. Whole parameters, or
  // with sharding this rank's runs of them, loaded on every rank, whoever wrote them.
  std::vector<HeldRun> held() const;
  // After held() were loaded: rounds masters into values and gathers them. Blocks.
  void refresh();
  // The loss scale's part of a checkpoint: scaler().state(), restore().
  nn::LossScaler& scaler() { return scaler_; }

  nn::Optimizer& rule() { return *rule_; }

 private:
  nn::StepOptions step_options(const UpdateOptions& options);

  ParallelModel& model_;
  collectives::WorkPtr last_sum_;  // of the step that is being queued
  nn::LossScaler scaler_;
  std::unique_ptr<nn::Optimizer> rule_;
};

}  // namespace shoal::parallel
