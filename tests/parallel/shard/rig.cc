#include "rig.h"

#include <algorithm>
#include <limits>

namespace shoal::parallel {
namespace {

void overflow(std::vector<Microbatch>& microbatches) {
  for (Microbatch& microbatch : microbatches)
    microbatch.input.loss.loss_scale = std::numeric_limits<float>::infinity();
}

}  // namespace

void train(const World& world, const Groups& groups, const ShardingOptions& sharding,
           const RunOptions& run, Outcome& outcome, std::mutex& mutex) {
  Rig rig;
  Sharded sharded(rig, groups.groups, sharding, run.compute);
  ChainStage stage(rig.context, rig.gpt2, {0, rig.gpt2.units()},
                   {.checkpoint_group = run.checkpoint_group, .observer = &sharded.units});
  const bool first_copy = world.rank < groups.shard->size();
  const auto collect = [&](auto&& of, auto& into, const auto& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const ShardSegment& mine = sharded.layout.segments[i];
      auto& all = into[tensors[i].name];
      all.resize(static_cast<std::size_t>(
          sharded.layout.parameters[static_cast<std::size_t>(mine.parameter)]->shape().count()));
      const std::vector<float> from = testing::values_of<float>(of(tensors[i]));
      std::ranges::copy(from, all.begin() + mine.first);
    }
  };
  const auto targets = static_cast<double>(world.size * kRows * kLength);
  for (int step = 0; step < kSteps; ++step) {
    auto microbatches = rig.batches(step, world.rank, world.size, run.microbatches);
    if (step == run.overflow_step && world.rank == 0) overflow(microbatches);
    sharded.gradients->begin_step();
    const double loss =
        rig.compute(stage, microbatches, run.order, [&] { sharded.gradients->arm(); });
    sharded.gradients->finish();
    if (step == 0 && first_copy) {
      const std::scoped_lock lock(mutex);
      collect([](const nn::Segment& segment) { return segment.gradient; }, outcome.gradients,
              sharded.rule.segments());
    }
    const nn::StepOutcome stepped = sharded.step();
    const std::scoped_lock lock(mutex);
    outcome.losses[static_cast<std::size_t>(step)] += loss / targets;
    outcome.norms[static_cast<std::size_t>(step)] = stepped.gradient_norm;
    outcome.skipped[static_cast<std::size_t>(step)] = stepped.skipped;
  }
  const double evaluated =
      rig.evaluate(stage, rig.batches(kSteps, world.rank, world.size, 1)) / targets;
  // Levels 2 and 3 reduce once for each microbatch, or once a step if the uses of all
  // microbatches end together.
  const std::int64_t full =
      sharded.layout.plan.flat.count * static_cast<std::int64_t>(sizeof(float));
  const bool often = sharding.level > 1 && run.order == Order::one_by_one;
  if (groups.shard->size() > 1) {
    EXPECT_EQ(sharded.gradients->statistics().reduced_bytes,
              full * kSteps * (often ? run.microbatches : 1));
  }
  EXPECT_GT(sharded.gradients->statistics().launched_in_backward, 0);
  sharded.units.drop_idle();
  EXPECT_EQ(sharded.values.live_elements(), 0);
  for (const nn::Parameter* parameter : sharded.layout.parameters)
    EXPECT_EQ(parameter->uses(), 0) << parameter->name();
  const std::scoped_lock lock(mutex);
  outcome.evaluated += evaluated;
  if (first_copy)
    collect([](const nn::NamedTensor& named) { return named.tensor; }, outcome.masters,
            sharded.values.masters());
}

Outcome train_alone(int ranks, DType compute, int overflow_step) {
  Rig rig;
  Outcome outcome;
  const auto parameters = rig.gpt2.parameters();
  nn::MasterWeights weights(parameters, compute, *rig.kernels, rig.memory);
  nn::allocate_gradients(rig.context, parameters);
  nn::Optimizer optimizer(*rig.kernels, rig.memory, weights.segments(), adamw());
  ChainStage stage(rig.context, rig.gpt2, {0, rig.gpt2.units()}, {});
  const auto targets = static_cast<double>(ranks * kRows * kLength);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Microbatch> whole{rig.batch(step, 0, ranks * kRows, ranks * kRows)};
    if (step == overflow_step) overflow(whole);
    for (nn::Parameter* parameter : parameters) parameter->clear_gradient();
    outcome.losses[static_cast<std::size_t>(step)] =
        rig.compute(stage, whole, Order::one_by_one, [] {}) / targets;
    if (step == 0)
      for (const nn::Parameter* parameter : parameters) {
        const std::vector<float> values = testing::values_of<float>(parameter->gradient);
        outcome.gradients[parameter->name()].assign(values.begin(), values.end());
      }
    const nn::StepOutcome stepped = optimizer.step(rig.state, step_options());
    outcome.norms[static_cast<std::size_t>(step)] = stepped.gradient_norm;
    outcome.skipped[static_cast<std::size_t>(step)] = stepped.skipped;
  }
  outcome.evaluated =
      rig.evaluate(stage, {rig.batch(kSteps, 0, ranks * kRows, ranks * kRows)}) / targets;
  return outcome;
}

}  // namespace shoal::parallel
