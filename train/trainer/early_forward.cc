#include "shoal/train/trainer/early_forward.h"

#include "shoal/runtime/base/error.h"

namespace shoal {

void AskingDispatcher::run(const nn::Operation& operation, const std::function<void()>& body) {
  if (before_read)
    for (const Tensor& input : operation.inputs)
      if (input.defined()) before_read(input);
  body();
}

void EarlyForward::attach(parallel::Reducer& reducer, nn::Optimizer& optimizer,
                          std::span<nn::Parameter* const> parameters) {
  reducer_ = &reducer;
  optimizer_ = &optimizer;
  // Segments correspond to the trainable parameters, in order (MasterWeights).
  for (const nn::Parameter* parameter : parameters) {
    if (!parameter->trainable()) continue;
    segment_of_.emplace(parameter, segment_of_.size());
    parameter_at_.emplace(static_cast<const std::byte*>(parameter->value.const_view().data),
                          parameter);
  }
  SHOAL_ASSERT(segment_of_.size() == optimizer.segments().size());
}

void EarlyForward::on_complete(nn::Parameter& parameter) {
  if (all_finite_ && parameter.gradient.count() > 0)
    all_finite_ = !kernels_.optimizer().has_non_finite(parameter.gradient, {});
}

void EarlyForward::on_reduced(nn::Parameter& parameter) {
  if (!updating_) return;
  if (!optimizer_->update_segment(segment_of_.at(&parameter)) && left_out_)
    left_out_(parameter.name());
}

void EarlyForward::before_read(const Tensor& tensor) {
  if (!updating_ || tensor.count() == 0) return;
  const auto* const data = static_cast<const std::byte*>(tensor.const_view().data);
  auto after = parameter_at_.upper_bound(data);
  if (after == parameter_at_.begin()) return;
  const auto& [begin, parameter] = *--after;
  if (data < begin + parameter->value.bytes()) reducer_->wait_for(*parameter);
}

bool EarlyForward::take_all_finite() {
  const bool finite = all_finite_;
  all_finite_ = true;
  return finite;
}

void EarlyForward::begin_updates(kernels::StepState& state, const nn::StepOptions& options) {
  SHOAL_ASSERT(!updating_);
  optimizer_->begin(state, options);
  updating_ = true;
}

double EarlyForward::settle() {
  SHOAL_ASSERT(updating_);
  reducer_->finish();
  updating_ = false;
  return optimizer_->end();
}

}  // namespace shoal
