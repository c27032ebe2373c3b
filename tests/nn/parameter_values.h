// Values for save_weights().
#pragma once

#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// Each parameter's value, as it is.
inline ParameterValue parameter_values() {
  return [](const Parameter& parameter) { return parameter.value.const_view(); };
}

}  // namespace shoal::nn
