// Cuts rows of batches into the microbatches of a mesh. In host memory.
#pragma once

#include <cstdint>

#include "shoal/nn/layers/chain.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

// Adds rows without targets until `unit` divides the batch.
nn::ChainInput filled_up(nn::ChainInput input, std::int64_t unit, MemoryResource& memory);
// Rows [first, first + rows), as views.
nn::ChainInput rows_of(const nn::ChainInput& input, std::int64_t first, std::int64_t rows);
// A single row without targets.
nn::ChainInput row_without_targets(const Task& task, std::int64_t length, MemoryResource& memory);

}  // namespace shoal
