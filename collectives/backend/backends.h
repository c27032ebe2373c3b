// The one table of backends. A backend missing from this build still has its row: CMake links a
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
// and no native-only option is set; else native. The reason against nccl is logged once. Collective
// if buffers are on devices; the same answer on every rank.
std::string choose_backend(const World& world, Store& store, const CommunicatorOptions& options);
// The first two ranks that share a GPU, by each rank's device_identity(); an empty one never
// matches.
std::optional<std::pair<int, int>> ranks_on_one_gpu(std::span<const std::string> identities);

// One rank: every operation is a copy; no store, no thread. `name` is returned by backend();
// `member` is this rank in the job, which Errors name.
std::unique_ptr<Communicator> make_single_communicator(std::string name,
                                                       const CommunicatorOptions& options,
                                                       int member = 0);

// Ordinary memory as symmetric memory; counted in `counted_by` unless null.
std::unique_ptr<MemoryResource> make_counted_host_memory(CountingMemory* counted_by);

// The factories, each in the namespace of its library.
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
// Why nccl is unavailable here for any ranks: not built, or an old library was loaded. Empty if it
// is available.
std::string nccl_problem();
}  // namespace nccl
namespace native {
// `native` inside a host: shared memory. Collective among the group's ranks. `prefix` of its store
// keys must be new for each group. `members`: see Group.
std::unique_ptr<Communicator> make_node_communicator(int rank, int size, Store& store,
                                                     const std::string& prefix,
                                                     const CommunicatorOptions& options,
                                                     std::vector<int> members = {});
}  // namespace native

}  // namespace shoal::collectives
