// Cuts batches into the microbatches of a rank. In host memory.
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
  std::int64_t parts = 1, part = 0;  // each microbatch's rows are divided; this rank's part
  std::int64_t stride = 1;           // between the ordinals of a batch's samples
  // At least as many batches: rows without targets, of `length` positions, stand for the others.
  std::int64_t batches = 1, length = 1;

  // Rows of a microbatch's part, for a batch of `batch_rows`.
  std::int64_t rows_of_part(std::int64_t batch_rows) const {
    return (batch_rows + pieces * parts - 1) / (pieces * parts);
  }
  std::int64_t first_row(std::int64_t piece, std::int64_t batch_rows) const {
    return (piece * parts + part) * rows_of_part(batch_rows);
  }
};

// This rank's part of the batches. Batches that do not divide get rows without targets, which
// change no loss and no gradient. Sample numbers count from `first_ordinal`.
std::vector<parallel::Microbatch> cut_batches(const Task& task, std::span<const Batch> batches,
                                              std::int64_t first_ordinal,
                                              const nn::LossOptions& loss, const BatchCut& cut,
                                              MemoryResource& memory);

}  // namespace shoal
