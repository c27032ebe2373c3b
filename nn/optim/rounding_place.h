// Where a parameter's elements draw the bits that they are rounded with, where there are no masters
// (kernels/rounding.h).
#pragma once

#include "shoal/kernels/rounding.h"
#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

// Of what begins with element `first` of the parameter here, which may be a part of the whole one.
// Unavailable where its pieces are not alike runs at even steps: none that this library cuts.
kernels::RoundingPlace rounding_place(const Parameter& parameter, std::uint64_t seed,
                                      std::int64_t first = 0);

}  // namespace shoal::nn
