// How large a batch fits into a device's memory, from the allocations of one recorded step.
#pragma once

#include <span>

#include "shoal/nn/capture/planned_memory.h"

namespace shoal::nn {

// Of the recorded step's microbatches.
struct RecordedBatch {
  std::int64_t rows = 0;
  std::int64_t positions = 0;  // rows times length
};

struct StepBytes {
  std::int64_t planned = 0;       // the arena's
  std::int64_t call_by_call = 0;  // the most alive at once, in the sizes of a pool (PoolMemory)
};
// Of the same step with `rows` rows. Blocks grow with the rows where the recorded batch's positions
// divide their bytes: activations and what is kept of each position. Others (sums over a batch,
// gradients of weights, scratch) stay. A weight whose bytes they divide by chance is taken to grow:
// then it says too much. What the pool would keep beside, it gives back where there is no room.
StepBytes bytes_of_step(const MemorySequence& sequence, const RecordedBatch& batch,
                        std::int64_t rows, Device device);

// The most rows whose steps fit into `room` bytes, with all that they ask for (of several memories
// a sequence each); 0: not one does.
struct LargestBatch {
  std::int64_t planned = 0, call_by_call = 0;
};
LargestBatch largest_batch(std::span<const MemorySequence> sequences, const RecordedBatch& batch,
                           std::int64_t room, Device device);

}  // namespace shoal::nn
