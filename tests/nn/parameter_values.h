// Values for save_weights().
#pragma once

#include "shoal/nn/models/huggingface.h"

namespace shoal::nn {

// Returns each parameter's value unchanged.
inline ParameterValue parameter_values() {
  return [](const Parameter& parameter) { return parameter.value.const_view(); };
}

}  // namespace shoal::nn
