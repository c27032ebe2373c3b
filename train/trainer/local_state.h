// This rank's part of a model and its optimizer state, as a checkpoint names them.
#pragma once

#include <string>
#include <vector>

#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/train/trainer/shard_files.h"

namespace shoal {

// held: all tensors of this rank; written: of tensors that several ranks hold, those that this rank
// writes.
enum class Which : std::uint8_t { held, written };
std::vector<LocalShard> held_weights(const parallel::ParallelModel& model, Which which);
std::vector<LocalShard> held_moments(const parallel::DistributedOptimizer& optimizer, Which which);

// Writes the model in Hugging Face's format into `directory`, which may be another one on each
// host. It goes through files in parts, one tensor at a time: no rank ever holds the whole model.
// Rank 0 writes. Collective, blocks.
void save_whole_model(const parallel::ParallelModel& model, const Task& task,
                      const std::string& directory, MemoryResource& host, Stream stream);

}  // namespace shoal
