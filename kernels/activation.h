// The activation functions that a matrix product can apply to its result.
#pragma once

#include <cstdint>

namespace shoal::kernels {

enum class Activation : std::uint8_t { none, gelu_tanh, gelu_erf, tanh, relu };

}  // namespace shoal::kernels
