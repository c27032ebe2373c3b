#include "shoal/parallel/apply/distributed_optimizer.h"

#include <utility>

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
  const std::vector<nn::NamedTensor> states = rule_.state_tensors();  // run by run
  const std::size_t each = runs.empty() ? 0 : states.size() / runs.size();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const OwnedRun& run = runs[i];
    all.push_back({run.parameter, "", run.first, run.segment.master, run.writes});
    for (std::size_t s = 0; s < each; ++s) {
      const nn::NamedTensor& state = states[i * each + s];  // "exp_avg/NAME"
      all.push_back({run.parameter, state.name.substr(0, state.name.find('/')), run.first,
                     state.tensor, run.writes});
    }
  }
  for (const OwnedRun& run : model_.frozen())
    all.push_back({run.parameter, "", run.first, run.segment.master, run.writes});
  return all;
}

void DistributedOptimizer::refresh() {
  model_.mesh().guarded([this] { model_.refresh(); });
}

}  // namespace shoal::parallel
