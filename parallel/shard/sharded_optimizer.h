// Steps this rank's shard and gives the others what changed (ZeRO; SMP's shard_optimizer_state).
#pragma once

#include <functional>
#include <memory>

#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/shard/sharded_values.h"

namespace shoal::parallel {

class ShardedOptimizer {
 public:
  // Makes the rule that is sharded, of this rank's segments: nn::make_adamw(...).
  using Make = std::function<std::unique_ptr<nn::Optimizer>(std::vector<nn::Segment>)>;
  // Refuses LAMB where parameters are cut (its trust ratios are whole parameters'). `values` and
  // `gradients` are of one layout and outlive the object.
  ShardedOptimizer(ShardedValues& values, ShardedGradients& gradients, const Make& make);

  // After gradients.finish(). As nn::Optimizer::step: norm, clipping, update of this rank's shard,
  // all of it skipped on every rank where the norm is not finite. options.sum_over_shards adds the
  // ranks' sums of squares; it must cover the shard group (and whatever else is cut: pipeline,
  // tensor parallelism; never replicas); default: the shard group. Then gathers the new values:
  // they are on their way when this returns; wait_for() a parameter before reading it, or wait().
  // ShardedUnits does so for what a unit reads.
  nn::StepOutcome step(kernels::StepState& state, nn::StepOptions options);
  void wait_for(const nn::Parameter& parameter) { values_.wait_for(parameter); }
  void wait() { values_.wait(); }

  // Its segments are the layout's, in that order; several may belong to one parameter.
  nn::Optimizer& rule() { return *rule_; }

 private:
  ShardedValues& values_;
  std::unique_ptr<nn::Optimizer> rule_;
};

}  // namespace shoal::parallel
