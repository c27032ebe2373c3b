// optimizer_offloading: memory for the masters and moments of a run on a device.
#pragma once

#include <memory>
#include <string>

#include "shoal/train/trainer/engine_parts.h"

namespace shoal {

class OptimizerMemory {
 public:
  explicit OptimizerMemory(const EngineParts& parts);
  // Pinned host memory: the run's if it has one, otherwise memory of its own. Null: masters and
  // moments are kept in device memory, like the parameters.
  MemoryResource* get() const { return memory_.get(); }
  // A line for the head of a log with the bytes used so far; empty: nothing to report.
  std::string describe() const;

 private:
  const bool asked_;
  std::unique_ptr<MemoryResource> own_;  // null: the run's pinned memory is used
  std::unique_ptr<CountingMemory> memory_;
};

}  // namespace shoal
