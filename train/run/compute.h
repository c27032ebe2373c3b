// A rank's device, its layers of device memory, and its kernels.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/capture/planned_memory.h"
#include "shoal/runtime/memory/limited_memory.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {

struct ChosenDevice {
  Device device;
  std::string why;  // for example "use_cpu"
};

// Chooses like Hugging Face's Trainer: the CPU with use_cpu or if no GPU is visible, otherwise the
// local rank's GPU among those in CUDA_VISIBLE_DEVICES. Throws unavailable, with reason and remedy,
// if the machine has a GPU that cannot be used.
ChosenDevice choose_device(const World& world, bool use_cpu);

// A GPU shared by several ranks: their number, and its free bytes when they started.
struct SharedGpu {
  int ranks = 1;
  std::int64_t free = 0;
};

// Limit for a rank's tensors in device memory: `limit_mb` MiB if given. Otherwise, on a CPU: nearly
// all free memory (runtime/base/free_memory.h), divided equally among the host's ranks. On a shared
// GPU: an equal share of its free memory. On an exclusive GPU there is no limit, since the driver
// enforces one.
std::optional<MemoryLimit> memory_limit(std::optional<double> limit_mb, const World& world,
                                        Device device, const SharedGpu& shared = {});

struct Compute {
  Compute(Device device, int cpu_threads, const std::optional<MemoryLimit>& limit);

  std::unique_ptr<MemoryResource> source, host_source;
  std::unique_ptr<LimitedMemory> limited;  // null: no limit
  PoolMemory pool;
  nn::PlannedMemory planned;
  CountingMemory asked;   // counts the requests of kernels and tensors
  CountingMemory memory;  // the same plus memory taken by communicators
  // For runs on a device other than the host; otherwise both null.
  std::unique_ptr<CountingMemory> pinned;  // pinned host memory, from which all host pools allocate
  std::unique_ptr<PoolMemory> host_pool;
  std::unique_ptr<kernels::Kernels> kernels;
  MemoryResource& host() { return host_pool ? static_cast<MemoryResource&>(*host_pool) : memory; }
};

}  // namespace shoal
