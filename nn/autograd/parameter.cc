#include "shoal/nn/autograd/parameter.h"

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

Parameter::Parameter(std::string name, Shape shape, Initializer initializer)
    : name_(std::move(name)), shape_(shape), initializer_(initializer) {}

bool Parameter::accumulate() {
  if (!gradient.defined())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("parameter {} has no gradient memory", name_),
                "allocate gradients (Reducer, or allocate_gradients) before the first forward");
  SHOAL_CHECK(gradient.dtype() == DType::f32 && gradient.shape() == shape_,
              "the gradient of {} is {} {}, not f32 {}", name_, to_string(gradient.dtype()),
              to_string(gradient.shape()), to_string(shape_));
  const bool had = has_gradient_;
  has_gradient_ = true;
  return had;
}

void Parameter::end_use() {
  SHOAL_ASSERT(uses_ > 0);
  if (--uses_ > 0 || !armed_) return;
  armed_ = false;
  if (hook_) hook_(*this);
}

}  // namespace shoal::nn
