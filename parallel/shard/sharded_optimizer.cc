#include "shoal/parallel/shard/sharded_optimizer.h"

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

ShardedOptimizer::ShardedOptimizer(ShardedValues& values, ShardedGradients& gradients,
                                   const Make& make)
    : values_(values), rule_(make(values.segments(&gradients))) {
  if (rule_->kind() == "lamb" && values.layout().groups.shards() > 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("LAMB cannot be sharded over {} ranks: its trust ratios are whole "
                            "parameters'",
                            values.layout().groups.shards()),
                "use adamw, or do not shard (shard_optimizer_state: false)");
}

nn::StepOutcome ShardedOptimizer::step(kernels::StepState& state, nn::StepOptions options) {
  values_.wait();  // of the step before: gathers read what is updated now
  collectives::Communicator& shard = *values_.layout().groups.shard;
  if (!options.sum_over_shards && shard.size() > 1)
    options.sum_over_shards = [&shard](double sum) {
      shard.all_reduce(&sum, &sum, 1, DType::f64, collectives::ReduceOp::sum)->wait();
      return sum;
    };
  const nn::StepOutcome outcome = rule_->step(state, options);
  if (!outcome.skipped) values_.publish();
  return outcome;
}

}  // namespace shoal::parallel
