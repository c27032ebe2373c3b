// Random-number coordinates for stochastic rounding of a parameter without masters
// (kernels/rounding.h).
#pragma once

#include "shoal/kernels/rounding.h"
#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

// Coordinates for this rank's part of the parameter, starting at its element `first`. Throws
// unavailable unless the pieces of the part are equal runs at regular strides, as this library
// always makes them.
kernels::RoundingPlace rounding_place(const Parameter& parameter, std::uint64_t seed,
                                      std::int64_t first = 0);

}  // namespace shoal::nn
