// What a rank has of the model's numbers, filled from a checkpoint of any layout: one in parts
// (sharded_checkpoint.h), or the files of a rank that had all (model.safetensors,
// optimizer.safetensors).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/train/checkpoint/held_tensor.h"
#include "shoal/train/tasks/task.h"

namespace shoal {

struct HeldNumbers {
  HeldTensor held;
  Tensor tensor;  // of held.dtype, contiguous, held.count() elements; shares the owner's memory
};

// Each under its tensor's name; of one tensor there may be several, or none. Returns and throws as
// Task::load(), and throws as ShardedCheckpoint, before anything is written.
nn::LoadReport read_weights(const std::string& directory, Task& task, kernels::Kernels& kernels,
                            std::span<const HeldNumbers> into);
// Optimizer state, under "exp_avg/NAME" and the like. not_found where the checkpoint has the model
// only.
void read_optimizer(const std::string& directory, kernels::Kernels& kernels,
                    std::span<const HeldNumbers> into);

// Copies of `tensors` in host memory, each of its own (MemoryTag::workspace). `stream` is the one
// that they are written on; waited for.
std::vector<HeldNumbers> copied(std::span<const HeldNumbers> tensors, MemoryResource& host,
                                Stream stream);
// `tensor` itself in host memory, once what is queued on `stream` is done; else a copy there.
Tensor on_host(const Tensor& tensor, MemoryResource& host, Stream stream);
// Rank `rank`'s shard of a checkpoint in parts.
void write_held(const std::string& directory, int rank, int ranks,
                std::span<const HeldNumbers> tensors);

}  // namespace shoal
