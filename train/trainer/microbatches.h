// Cuts batches in host memory into a rank's microbatches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/train/data/batch.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

struct BatchCut {
  std::int64_t pieces = 1;           // microbatches of a batch
  std::int64_t parts = 1, part = 0;  // parts of each microbatch's rows; this rank's part
  std::int64_t stride = 1;           // difference of the ordinals of consecutive samples in a batch
  // Minimum number of batches. Rows of `length` positions without targets replace missing batches.
  std::int64_t batches = 1, length = 1;
  // If positive, microbatches have ChainInput::visible, in multiples of it.
  std::int64_t visible_granularity = 0;

  // Rows in one part of a microbatch, rounded up, for a batch of `batch_rows` rows.
  std::int64_t rows_of_part(std::int64_t batch_rows) const {
    return (batch_rows + pieces * parts - 1) / (pieces * parts);
  }
  std::int64_t first_row(std::int64_t piece, std::int64_t batch_rows) const {
    return (piece * parts + part) * rows_of_part(batch_rows);
  }
};

// Returns this rank's part of the batches. A batch that cannot be divided evenly is filled up with
// rows without targets, which affect neither loss nor gradients. Sample numbers are relative to
// `first_ordinal`.
std::vector<parallel::Microbatch> cut_batches(const Task& task, std::span<const Batch> batches,
                                              std::int64_t first_ordinal,
                                              const nn::LossOptions& loss, const BatchCut& cut,
                                              MemoryResource& memory);

}  // namespace shoal
