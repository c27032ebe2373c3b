// GELU (Hendrycks & Gimpel, 2016), exact and in its tanh form, tanh and ReLU, with derivatives.
#pragma once

#include <cmath>
#include <numbers>

#include "shoal/kernels/matmul.h"

namespace shoal::kernels::reference {

inline constexpr double kTanhGeluScale = 0.7978845608028654;  // sqrt(2 / pi)
inline constexpr double kTanhGeluCubic = 0.044715;

inline double activation(Activation kind, double x) {
  switch (kind) {
    case Activation::none:
      return x;
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(kTanhGeluScale * (x + kTanhGeluCubic * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::tanh:
      return std::tanh(x);
    case Activation::relu:
      return x < 0 ? 0 : x;
  }
  return x;
}

inline double activation_derivative(Activation kind, double x) {
  switch (kind) {
    case Activation::none:
      return 1;
    case Activation::gelu_tanh: {
      const double t = std::tanh(kTanhGeluScale * (x + kTanhGeluCubic * x * x * x));
      return 0.5 * (1 + t) +
             0.5 * x * (1 - t * t) * kTanhGeluScale * (1 + 3 * kTanhGeluCubic * x * x);
    }
    case Activation::gelu_erf:
      return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    case Activation::tanh: {
      const double c = std::cosh(x);
      return 1 / (c * c);
    }
    case Activation::relu:
      return x > 0 ? 1 : 0;
  }
  return 1;
}

}  // namespace shoal::kernels::reference
