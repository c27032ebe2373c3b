// optimizer_offloading: where a device's run has its masters and moments.
#pragma once

#include <memory>
#include <string>

#include "shoal/train/trainer/engine.h"

namespace shoal {

class OptimizerMemory {
 public:
  explicit OptimizerMemory(const EngineParts& parts);
  // Pinned memory of the host, the run's where it has one; null: they lie with the parameters.
  MemoryResource* get() const { return memory_.get(); }
  // A line for the head of a log, with what has been taken so far; empty: there is nothing to say.
  std::string describe() const;

 private:
  const bool asked_;
  std::unique_ptr<MemoryResource> own_;  // null: the run's
  std::unique_ptr<CountingMemory> memory_;
};

}  // namespace shoal
