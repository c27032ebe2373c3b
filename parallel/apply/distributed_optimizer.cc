#include "shoal/parallel/apply/distributed_optimizer.h"

#include <utility>

#include "shoal/nn/optim/parameter_place.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::parallel {
namespace {

nn::LossScalerOptions scaling(const DistributedOptimizerOptions& options) {
  nn::LossScalerOptions scaling = options.dynamic_loss_args;
  scaling.dynamic = options.dynamic_loss_scale;
  if (!scaling.dynamic) scaling.init_scale = options.static_loss_scale;
  return scaling;
}

std::vector<nn::Segment> segments_of(const std::vector<OwnedRun>& runs) {
  std::vector<nn::Segment> segments;
  for (const OwnedRun& run : runs) segments.push_back(run.segment);
  return segments;
}

}  // namespace

DistributedOptimizer::DistributedOptimizer(ParallelModel& model,
                                           std::unique_ptr<nn::UpdateRule> rule,
                                           const DistributedOptimizerOptions& options,
                                           MemoryResource* states)
    : model_(model), sums_(model), scaler_(scaling(options)), rule_(model.mesh().guarded([&] {
        model.prepare_training();
        nn::Context& context = model.context();
        return nn::Optimizer(context.kernels(), context.memory(), segments_of(model.owned()),
                             std::move(rule), states, &sums_);
      })) {}

nn::StepOutcome DistributedOptimizer::step(kernels::StepState& state, nn::StepOptions options) {
  return model_.mesh().guarded([&] {
    model_.wait_for_values();  // the last step's gathers read the values that are updated now
    options.gradient_scale /= scaler_.scale();
    const nn::StepOutcome outcome = rule_.step(state, options);
    if (!outcome.skipped) model_.publish();
    scaler_.update(outcome.skipped);
    return outcome;
  });
}

void DistributedOptimizer::set_step(kernels::StepState& state, const nn::StepOptions& options) {
  rule_.set_step(state, options);
}

void DistributedOptimizer::queue_step(kernels::StepState& state, const nn::StepOptions& options) {
  model_.mesh().guarded([&] {
    model_.wait_for_values();
    rule_.queue_step(state, options);
    model_.publish();
    // The next step may be a replay, which does not wait for this step's gathers.
    if (is_repeatable_step()) model_.wait_for_values();
  });
}

std::vector<StateRun> DistributedOptimizer::state_runs() const {
  std::vector<StateRun> all;
  const std::vector<OwnedRun> runs = model_.owned();
  for (const auto& some : {runs, model_.frozen()})
    for (const OwnedRun& run : some)
      all.push_back({run.parameter, {}, run.first, run.segment.master, run.writes});
  for (const nn::StateTensor& state : rule_.state_tensors()) {
    const OwnedRun& run = runs[state.segment];
    bool writes = run.writes;
    if (state.state.mean_over > 0)  // whole on every rank; one of them has the first element
      writes = writes && run.segment.master.count() > 0 &&
               nn::element_place(*run.parameter, run.first).element(0) == 0;
    all.push_back({run.parameter, state.state, run.first, state.tensor, writes});
  }
  return all;
}

void DistributedOptimizer::refresh() {
  model_.mesh().guarded([this] { model_.refresh(); });
}

}  // namespace shoal::parallel
