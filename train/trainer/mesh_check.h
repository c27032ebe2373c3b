// The one gate that a run on a mesh passes: what cannot be is refused before a rank holds anything.
#pragma once

#include <cstdint>

#include "shoal/nn/layers/chain.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// Resolved `arguments` that have mp_parameters, and the model, whose parameters need no values.
// Throws invalid_argument with every problem that the layout has (check_layout()), then the first
// of its partition, with the numbers and remedies. `length`: positions of a sample; 0: not known.
// Reads the partition's file where it is to be loaded; the same on every rank.
void check_mesh(const TrainingArguments& arguments, const nn::Chain& chain, int ranks,
                std::int64_t length);

}  // namespace shoal
