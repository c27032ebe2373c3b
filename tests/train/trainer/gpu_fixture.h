// The memory and kernels that train/run/compute.h gives a rank on a GPU.
#pragma once

#include <memory>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/capture/planned_memory.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::test {

struct GpuFixture {
  explicit GpuFixture(Device on = Device::cuda(0)) : device(on) {}

  const Device device;
  std::unique_ptr<MemoryResource> source = make_device_memory(device),
                                  host_source = make_pinned_memory();
  PoolMemory pool{*source};
  nn::PlannedMemory planned{pool, *source};
  CountingMemory memory{planned};
  CountingMemory pinned{*host_source};
  PoolMemory host{pinned};
  std::unique_ptr<kernels::Kernels> kernels =
      kernels::make_cuda_kernels({.device = device, .memory = &memory, .cache_directory = {}});

  void give(TrainerParts& parts) {
    parts.kernels = kernels.get();
    parts.memory = &memory;
    parts.host_memory = &host;
    parts.pinned_memory = &pinned;
    parts.planned_memory = &planned;
  }
};

}  // namespace shoal::test
