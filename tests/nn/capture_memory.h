// The memory for step-capture tests: the host's, with a limit.
#pragma once

#include <cstdint>
#include <memory>

#include "shoal/nn/capture/planned_memory.h"
#include "shoal/runtime/memory/limited_memory.h"

namespace shoal::nn::test {

struct CaptureMemory {
  explicit CaptureMemory(std::int64_t limit = std::int64_t{1} << 20)
      : limited(*host, {limit, "the test's"}) {}
  std::unique_ptr<MemoryResource> host = make_host_memory();
  LimitedMemory limited;
  CountingMemory source{limited};
  PoolMemory pool{source};
  PlannedMemory planned{pool, source};
};

}  // namespace shoal::nn::test
