// Estimates the largest batch that fits in a device's memory from one recorded step's allocations.
#pragma once

#include <span>

#include "shoal/nn/capture/planned_memory.h"

namespace shoal::nn {

// A microbatch of the recorded step.
struct RecordedBatch {
  std::int64_t rows = 0;
  std::int64_t positions = 0;  // rows times length
};

struct StepBytes {
  std::int64_t planned = 0;       // size of the arena
  std::int64_t call_by_call = 0;  // peak in use, in a pool's block sizes (PoolMemory)
};
// Memory of the same step with `rows` rows. A block is assumed to grow with the rows if its size is
// a multiple of the recorded positions, like activations and other per-position data. Other blocks
// (sums over a batch, weight gradients, scratch) keep their size. A weight whose size happens to be
// such a multiple makes the estimate too high. Free blocks cached by the pool are not counted,
// since it releases them when memory is short.
StepBytes bytes_of_step(const MemorySequence& sequence, const RecordedBatch& batch,
                        std::int64_t rows, Device device);

// The largest row counts whose steps fit in `room` bytes. Each memory has its own sequence; all
// must fit together. 0: no row count fits.
struct LargestBatch {
  std::int64_t planned = 0, call_by_call = 0;
};
LargestBatch largest_batch(std::span<const MemorySequence> sequences, const RecordedBatch& batch,
                           std::int64_t room, Device device);

}  // namespace shoal::nn
