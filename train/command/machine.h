// Finds what this machine has, without linking libraries that may be missing.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shoal::command {

struct Finding {
  std::string name;   // "AMX bf16"
  std::string value;  // "yes", "2.6.3", "not found"
  bool present = false;
  std::string matter;  // its purpose, or the feature that is missing without it
};

// Cores, affinity, instruction sets, memory, huge pages, /dev/shm.
std::vector<Finding> processor_findings();
// GPUs, NCCL and its network plugin, MPI, libfabric providers, oneDNN.
std::vector<Finding> library_findings();
Finding nccl_network_finding();

}  // namespace shoal::command
