// Where a rank computes: the device, memory of it in layers, and its kernels.
#pragma once

#include <memory>
#include <string>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/capture/planned_memory.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::app {

struct ChosenDevice {
  Device device;
  std::string why;  // "one GPU for each rank of a host", "use_cpu"
};

// As Hugging Face's trainer chooses: a GPU where there is one and use_cpu is false, the local
// rank's among those that CUDA_VISIBLE_DEVICES shows; else the CPU. unavailable where this machine
// has a GPU that cannot be used, with the reason and the remedy.
ChosenDevice choose_device(const World& world, bool use_cpu);

struct Compute {
  Compute(Device device, int cpu_threads);

  std::unique_ptr<MemoryResource> source, host_source;
  PoolMemory pool;
  nn::PlannedMemory planned;
  CountingMemory memory;                  // of the device
  std::unique_ptr<PoolMemory> host_pool;  // null: the device is the host
  std::unique_ptr<kernels::Kernels> kernels;
  MemoryResource& host() { return host_pool ? static_cast<MemoryResource&>(*host_pool) : memory; }
};

}  // namespace shoal::app
