#include "shoal/train/trainer/optimizer_memory.h"

#include <fmt/format.h>

#include "shoal/train/trainer/log_format.h"

namespace shoal {

OptimizerMemory::OptimizerMemory(const EngineParts& parts)
    : asked_(parts.arguments.optimizer_offloading) {
  if (!asked_ || parts.trainer.kernels->device().is_cpu()) return;
  CountingMemory* const pinned = parts.trainer.pinned_memory;
  if (pinned == nullptr) own_ = make_pinned_memory();
  memory_ = std::make_unique<CountingMemory>(own_ ? *own_ : static_cast<MemoryResource&>(*pinned));
}

std::string OptimizerMemory::describe() const {
  if (memory_)
    return fmt::format("optimizer state: {} in pinned host memory (optimizer_offloading)",
                       format_bytes(memory_->total().current));
  return asked_ ? "note: optimizer_offloading has no effect: the run is on the CPU" : "";
}

}  // namespace shoal
