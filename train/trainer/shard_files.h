// Fills a rank's part of the model from a checkpoint of any layout: in parts
// (sharded_checkpoint.h), or whole, as written by one rank (model.safetensors,
// optimizer.safetensors).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/tensor_shard.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

struct LocalShard {
  TensorShard shard;
  Tensor tensor;  // shard.count() contiguous elements of shard.dtype; shares the owner's memory
};

// Fills each entry from a checkpoint in parts. Waits for `stream`.
void read_local_shards(const ShardedCheckpoint& checkpoint, std::span<const LocalShard> into,
                       Stream stream);
// Reads each entry by its tensor's name; a tensor may have several entries or none. Returns the
// same as Task::load(). Throws errors of Task::load() and ShardedCheckpoint before it writes to any
// entry.
nn::LoadReport read_weights(const std::string& directory, Task& task, kernels::Kernels& kernels,
                            std::span<const LocalShard> into);
// Reads optimizer state, which is named like "exp_avg/NAME". Throws not_found if the checkpoint has
// only the model.
void read_optimizer(const std::string& directory, kernels::Kernels& kernels,
                    std::span<const LocalShard> into);

// Copies `tensors` to new host memory (MemoryTag::workspace). First waits for `stream`, on which
// they are written.
std::vector<LocalShard> copied(std::span<const LocalShard> tensors, MemoryResource& host,
                               Stream stream);
// Writes rank `rank`'s shard of a checkpoint in parts.
void write_local_shards(const std::string& directory, int rank, int ranks,
                        std::span<const LocalShard> tensors);

}  // namespace shoal
