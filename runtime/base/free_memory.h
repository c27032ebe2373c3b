// Memory that this process may still take before the kernel kills it. It is the smallest of the
// machine's free memory, the rest in each control group that contains the process, and the rest
// under `ulimit -v`. Control groups are of version 2 or 1 (cgroups(7)); a container's limit is one.
#pragma once

#include <cstdint>
#include <string>

namespace shoal {

struct FreeMemory {
  std::int64_t free = -1, total = -1;  // bytes; -1: unknown
  std::string bound;  // source of the limit: "the machine's memory", "the limit of the control
                      // group ..."
  bool known() const { return free >= 0; }
};

// Current values. Other processes share all of it except `ulimit -v`. File pages that the kernel
// would drop count as free, and so does the machine's swap, but not a group's swap. Of the address
// space under `ulimit -v` three fifths count: the rest goes to aligned blocks, stacks and malloc's
// arenas. `root`: a test's directory with its own proc and sys. Never throws for unreadable files.
FreeMemory free_memory(const std::string& root = {});

}  // namespace shoal
