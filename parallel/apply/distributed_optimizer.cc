#include "shoal/parallel/apply/distributed_optimizer.h"

#include <utility>

#include "shoal/collectives/watch.h"
#include "shoal/runtime/base/error.h"

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

DistributedOptimizer::DistributedOptimizer(ParallelModel& model, const Make& make,
                                           const DistributedOptimizerOptions& options)
    : model_(model), scaler_(scaling(options)), rule_(model.mesh().guarded([&] {
        model.prepare_training();
        return make(segments_of(model.owned()));
      })) {}

nn::StepOptions DistributedOptimizer::step_options(const UpdateOptions& options) {
  nn::StepOptions update{.learning_rate = options.learning_rate,
                         .update = options.update,
                         .inverse_targets = options.inverse_targets,
                         .max_gradient_norm = options.max_gradient_norm,
                         .scaling = options.scaling};
  if (model_.mesh().world().size() > 1) {
    update.sum_over_shards = [this, loss = options.loss](double sum) {
      return model_.sum_squares(sum, loss);
    };
    update.sum_in_place = [this](const Tensor& sum, Stream stream) {
      model_.sum_squares_in_place(
          sum, stream, [this](collectives::WorkPtr last) { last_sum_ = std::move(last); });
    };
  }
  update.before_reading = [this](Stream stream) {
    SHOAL_CHECK(!model_.mesh().captured(), "the host reads numbers in the middle of the update");
    if (last_sum_) last_sum_->wait();
    collectives::watch(model_.mesh().world(), stream);
  };
  if (model_.has_parts())
    update.sum_parts = [this](std::span<nn::SquareSums> sums) { model_.sum_over_parts(sums); };
  return update;
}

nn::StepOutcome DistributedOptimizer::step(kernels::StepState& state,
                                           const UpdateOptions& options) {
  return model_.mesh().guarded([&] {
    model_.wait_for_values();  // the last step's gathers read the values that are updated now
    nn::StepOptions update = step_options(options);
    update.gradient_scale = 1 / scaler_.scale();
    const nn::StepOutcome outcome = rule_->step(state, update);
    last_sum_.reset();
    if (!outcome.skipped) model_.publish();
    scaler_.update(outcome.skipped);
    return outcome;
  });
}

void DistributedOptimizer::set_step(kernels::StepState& state, const UpdateOptions& options) {
  rule_->set_step(state, step_options(options));
}

void DistributedOptimizer::queue_step(kernels::StepState& state, const UpdateOptions& options) {
  model_.mesh().guarded([&] {
    model_.wait_for_values();
    rule_->queue_step(state, step_options(options));
    model_.publish();
    // A captured step must end with no running gather: the next step may be a replay.
    if (model_.options().captured) model_.wait_for_values();
  });
}

std::vector<HeldRun> DistributedOptimizer::held() const {
  std::vector<HeldRun> held;
  const std::vector<OwnedRun> runs = model_.owned();
  const std::vector<nn::NamedTensor> states = rule_->state_tensors();  // run by run
  const std::size_t each = runs.empty() ? 0 : states.size() / runs.size();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const OwnedRun& run = runs[i];
    held.push_back({run.parameter, "", run.first, run.segment.master, run.writes});
    for (std::size_t s = 0; s < each; ++s) {
      const nn::NamedTensor& state = states[i * each + s];  // "exp_avg/NAME"
      held.push_back({run.parameter, state.name.substr(0, state.name.find('/')), run.first,
                      state.tensor, run.writes});
    }
  }
  for (const OwnedRun& run : model_.frozen())
    held.push_back({run.parameter, "", run.first, run.segment.master, run.writes});
  return held;
}

void DistributedOptimizer::refresh() {
  model_.mesh().guarded([this] { model_.refresh(); });
}

}  // namespace shoal::parallel
