// Random coordinates for the stochastic rounding of a parameter without masters
// (kernels/rounding.h).
#pragma once

#include "shoal/kernels/rounding.h"
#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

// Coordinates of the elements from `first` on in this rank's part of the parameter. Throws
// unavailable if its pieces are not equal runs at even steps; this library makes no such parts.
kernels::RoundingPlace rounding_place(const Parameter& parameter, std::uint64_t seed,
                                      std::int64_t first = 0);

}  // namespace shoal::nn
