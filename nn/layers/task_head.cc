#include "shoal/nn/layers/task_head.h"

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

LossOutput SampleHead::forward(Context& context, const Value& hidden, const ChainInput& input) {
  const Shape& shape = hidden.tensor.shape();
  if (shape.rank() != 3 || shape[1] != input.ids.shape()[1])
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a head that must see all {} positions gets hidden states {}",
                            input.ids.shape()[1], to_string(shape)),
                "give it whole sequences");
  return loss(context, hidden, input);
}

}  // namespace shoal::nn
