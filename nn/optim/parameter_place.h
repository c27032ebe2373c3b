// Where a rank's part of a parameter is in the whole parameter (kernels/element_place.h).
#pragma once

#include "shoal/kernels/rounding.h"
#include "shoal/nn/autograd/parameter.h"

namespace shoal::nn {

// Places of this rank's part, starting at its element `first`. Throws unavailable unless the pieces
// of the part are equal runs at regular strides, as this library always makes them.
kernels::ElementPlace element_place(const Parameter& parameter, std::int64_t first = 0);
// The same, with the coordinates of stochastic rounding of a bf16 parameter without masters.
kernels::RoundingPlace rounding_place(const Parameter& parameter, std::uint64_t seed,
                                      std::int64_t first = 0);

// The matrices of a parameter of shape `whole`, of which a rank holds a part of shape `part`. Its
// `place` is that of a whole parameter.
kernels::MatrixPlace matrix_place(const Shape& whole, const Shape& part);

}  // namespace shoal::nn
