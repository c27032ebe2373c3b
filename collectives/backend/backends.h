// The one table of backends. A backend that this build lacks still has its row: CMake links a
// source whose factory throws unavailable and names the build flag (decision 14).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::collectives {

struct Backend {
  std::string_view name;
  std::unique_ptr<Communicator> (*make)(const World&, Store&, const CommunicatorOptions&);
};

std::span<const Backend> backends();

// Resolves `auto` for these ranks: nccl if buffers are in device memory, every rank has its own GPU
// and no native-only option is set; otherwise native. Logs the reason against nccl once. Returns
// the same on every rank; collective if buffers are on devices.
std::string choose_backend(const World& world, Store& store, const CommunicatorOptions& options);
// Returns the first two ranks whose device_identity() is equal, hence share a GPU. An empty
// identity equals no other.
std::optional<std::pair<int, int>> ranks_on_one_gpu(std::span<const std::string> identities);

// A group of one rank: every operation is a copy, and there is neither store nor thread. backend()
// returns `name`. Errors name this rank by `member`, its rank in the job.
std::unique_ptr<Communicator> make_single_communicator(std::string name,
                                                       const CommunicatorOptions& options,
                                                       int member = 0);

// Returns host memory that serves as symmetric memory. `counted_by` counts its allocations; null:
// they are not counted.
std::unique_ptr<MemoryResource> make_counted_host_memory(CountingMemory* counted_by);

// The factories, each in its library's namespace.
namespace hierarchical {
std::unique_ptr<Communicator> make_native_communicator(const World& world, Store& store,
                                                       const CommunicatorOptions& options);
}
namespace mpi {
std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Store& store,
                                                    const CommunicatorOptions& options);
}
namespace nccl {
std::unique_ptr<Communicator> make_nccl_communicator(const World& world, Store& store,
                                                     const CommunicatorOptions& options);
// Why nccl is unavailable to every rank here: not built in, or the loaded library is too old.
// Empty: it is available.
std::string nccl_problem();
}  // namespace nccl
namespace native {
// `native` inside a host, over shared memory. Collective among the group's ranks. `prefix` of its
// store keys must be new for each group. `members`: see Group.
std::unique_ptr<Communicator> make_node_communicator(int rank, int size, Store& store,
                                                     const std::string& prefix,
                                                     const CommunicatorOptions& options,
                                                     std::vector<int> members = {});
}  // namespace native

}  // namespace shoal::collectives
