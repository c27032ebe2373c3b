// How much more memory this process may take before the kernel ends it: what is free on the
// machine, in each control group that holds the process (a container's limit is one: cgroups(7),
// version 2 or 1), and under `ulimit -v`. The smallest counts.
#pragma once

#include <cstdint>
#include <string>

namespace shoal {

struct MemoryRoom {
  std::int64_t free = -1, total = -1;  // bytes; -1: the system does not say
  std::string bound;  // who sets it: "the machine's memory", "the limit of the control group ..."
  bool known() const { return free >= 0; }
};

// As things are now: other processes share all of it but `ulimit -v`. Pages of files that the
// kernel would give up count as free; so does the machine's swap, but no group's. Of the addresses
// under `ulimit -v` three fifths: aligned blocks, stacks and malloc's arenas take the others. The
// arguments are where these file systems are. Never throws for what it cannot read.
MemoryRoom memory_room(const std::string& proc = "/proc",
                       const std::string& cgroup = "/sys/fs/cgroup");

}  // namespace shoal
