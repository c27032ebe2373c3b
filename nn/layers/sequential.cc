#include "shoal/nn/layers/sequential.h"

#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

Sequential::Sequential(std::int64_t channels, std::vector<std::unique_ptr<Unit>> units,
                       std::unique_ptr<LossUnit> head)
    : channels_(channels), head_(*this, "head", std::move(head)) {
  SHOAL_CHECK(!units.empty(), "a Sequential needs at least one unit before its head");
  for (std::unique_ptr<Unit>& unit : units)
    units_.emplace_back(*this, std::to_string(units_.size()), std::move(unit));
}

std::string Sequential::unit_name(int unit) const {
  return unit + 1 == units() ? "head" : std::to_string(unit);
}

std::vector<Module*> Sequential::unit_modules(int unit) const {
  if (unit + 1 == units()) return {&*head_};
  return {&*units_[static_cast<std::size_t>(unit)]};
}

ResidualStream Sequential::forward_unit(Context& context, int unit, ResidualStream stream,
                                        const ChainInput& input) {
  const Value x = std::move(stream).collapse(context);
  return {units_[static_cast<std::size_t>(unit)]->forward(context, x, input), std::nullopt, {}};
}

LossOutput Sequential::forward_head(Context& context, ResidualStream stream,
                                    const ChainInput& input) {
  const Value x = std::move(stream).collapse(context);
  return head_->loss(context, head_->scores(context, x, input), input);
}

Tensor Sequential::head_logits(Context& context, ResidualStream stream, const ChainInput& input) {
  const Value x = std::move(stream).collapse(context);
  return head_->scores(context, x, input).tensor;
}

}  // namespace shoal::nn
