// The activation functions that a matrix product can apply to its result.
//
//   nn::Linear up({.in = 64, .out = 256, .activation = kernels::Activation::gelu_tanh});
#pragma once

#include <cstdint>

namespace shoal::kernels {

// GELU (Hendrycks and Gimpel, 2016): gelu_erf is exact, gelu_tanh approximates it as GPT-2 does.
enum class Activation : std::uint8_t { none, gelu_tanh, gelu_erf, tanh, relu };

}  // namespace shoal::kernels
