// Where a rank computes: the device, memory of it in layers, and its kernels.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/capture/planned_memory.h"
#include "shoal/runtime/memory/limited_memory.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal::app {

struct ChosenDevice {
  Device device;
  std::string why;  // "one GPU for each rank of a host", "use_cpu"
};

// As Hugging Face's trainer chooses: a GPU where there is one and use_cpu is false, the local
// rank's among those that CUDA_VISIBLE_DEVICES shows; else the CPU. unavailable where this machine
// has a GPU that cannot be used, with the reason and the remedy.
ChosenDevice choose_device(const World& world, bool use_cpu);

// Of a GPU that several ranks are on: how many, and the bytes that nobody held when they began.
struct SharedGpu {
  int ranks = 1;
  std::int64_t free = 0;
};

// How much of the device's memory a rank's tensors may take: what memory_limit_mb says; else on a
// CPU an equal share, among the ranks of the host, of nearly all that is free now
// (runtime/base/memory_room.h), on a GPU that ranks share an equal share of it, and on one of its
// own, whose driver refuses what is not there, no limit.
std::optional<MemoryLimit> memory_limit(const TrainingArguments& arguments, const World& world,
                                        Device device, const SharedGpu& shared);

struct Compute {
  Compute(Device device, int cpu_threads, const std::optional<MemoryLimit>& limit);

  std::unique_ptr<MemoryResource> source, host_source;
  std::unique_ptr<LimitedMemory> limited;  // null: there is no limit
  PoolMemory pool;
  nn::PlannedMemory planned;
  CountingMemory asked;   // of the device
  CountingMemory memory;  // besides, what communicators took
  // Of a device's run; both null where the device is the host.
  std::unique_ptr<CountingMemory> pinned;  // what is locked of the host's, under all pools
  std::unique_ptr<PoolMemory> host_pool;
  std::unique_ptr<kernels::Kernels> kernels;
  MemoryResource& host() { return host_pool ? static_cast<MemoryResource&>(*host_pool) : memory; }
};

}  // namespace shoal::app
