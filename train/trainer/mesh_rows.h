// The rows of batches, as a mesh cuts them into microbatches. In host memory.
#pragma once

#include <cstdint>

#include "shoal/nn/layers/chain.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

// Rows without targets are added, that `unit` may divide the batch.
nn::ChainInput filled_up(nn::ChainInput input, std::int64_t unit, MemoryResource& memory);
// [first, first + rows), views.
nn::ChainInput rows_of(const nn::ChainInput& input, std::int64_t first, std::int64_t rows);
// One row.
nn::ChainInput row_without_targets(const Task& task, std::int64_t length, MemoryResource& memory);

}  // namespace shoal
