// Compares the adapters of a checkpoint with those of the run that continues it.
#pragma once

#include <string>
#include <vector>

#include "shoal/nn/layers/module.h"

namespace shoal {

// Throws invalid_argument, on one line, if only one side has adapters, or if they differ in rank,
// scale or layers. Returns differences that a run may have, as "lora_dropout is 0.1 in .., and 0
// here".
std::vector<std::string> check_same_adapters(const std::string& checkpoint_directory,
                                             const nn::Module& model);

}  // namespace shoal
