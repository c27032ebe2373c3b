// How much more memory this process can use before the kernel kills it. This is the smallest of the
// machine's free memory, the remainder in each of the process's control groups, and the remainder
// under `ulimit -v`. A container's limit is the limit of a control group (cgroups(7), versions 1
// and 2).
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

// Current values. All of this memory except `ulimit -v` is shared with other processes. Reclaimable
// file pages and the machine's swap count as free; a group's swap does not. Only three fifths of
// the address space under `ulimit -v` count, since aligned blocks, stacks and malloc's arenas take
// the rest. `root`: prefix of /proc and /sys, for tests. Never throws for unreadable files.
FreeMemory free_memory(const std::string& root = {});

}  // namespace shoal
