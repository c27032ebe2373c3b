// What this process and its host have used so far, for the records of a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

struct ProcessUse {
  double processor_seconds = 0;     // of all threads, user and system
  std::int64_t resident_bytes = 0;  // memory of this process that is in RAM now
  std::int64_t received_bytes = 0;  // by the host's network interfaces, the loopback left out
  std::int64_t sent_bytes = 0;
};

// Reads the kernel's counters: about 50 µs, without blocking. What the kernel does not tell is 0.
// `root`: prefix of /proc, for tests. Never throws for unreadable files.
ProcessUse process_use(const std::string& root = {});

// Adds the counters of the text of /proc/net/dev (proc_net_dev(5)). Ignores lines of another form.
// Traffic over EFA's bypass of the kernel does not appear there.
void add_network(ProcessUse& use, std::string_view text);

}  // namespace shoal
