// This rank's part of a model and its optimizer state, under the names used in checkpoints.
#pragma once

#include <string>
#include <vector>

#include "shoal/parallel/apply/distributed_optimizer.h"
#include "shoal/train/trainer/shard_files.h"

namespace shoal {

// all: all tensors of this rank; written: those that it writes to a checkpoint; trained: the
// written ones that are trained. A tensor that several ranks hold is written by one of them.
enum class Which : std::uint8_t { all, written, trained };
// The weights in a checkpoint: written; for a model with adapters trained, since the frozen ones
// are in the adapted model's directory.
Which saved_weights(Task& task);
std::vector<LocalShard> local_weights(const parallel::ParallelModel& model, Which which);
std::vector<LocalShard> local_moments(const parallel::DistributedOptimizer& optimizer, Which which);

// Writes the model in Hugging Face's format into `directory`, which may be a different directory on
// each host. The ranks first write their parts to temporary files, from which rank 0 writes one
// tensor at a time: no rank ever holds the whole model. Collective, blocks.
void save_whole_model(const parallel::ParallelModel& model, Task& task,
                      const std::string& directory, MemoryResource& host, Stream stream);

}  // namespace shoal
