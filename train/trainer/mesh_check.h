// Checks a run on a mesh before any rank allocates memory.
#pragma once

#include <cstdint>

#include "shoal/nn/layers/chain.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// Takes resolved `arguments` with mp_parameters and the model, whose parameters need no values.
// Throws invalid_argument with every problem of the layout (check_layout()), otherwise with the
// first problem of its partition; with numbers and remedies. `length`: positions of a sample; 0:
// unknown. Reads the partition's file if it is to be loaded. Same result on every rank.
void check_mesh(const TrainingArguments& arguments, const nn::Chain& chain, int ranks,
                std::int64_t length);

}  // namespace shoal
