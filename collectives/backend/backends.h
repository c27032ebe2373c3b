// The one table of backends. A backend that this build lacks still has its row: CMake links a
// source whose factory throws unavailable, naming the build flag (decision 14).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "shoal/collectives/communicator.h"

namespace shoal::collectives {

struct Backend {
  std::string_view name;
  std::unique_ptr<Communicator> (*make)(const World&, Store&, const CommunicatorOptions&);
};

std::span<const Backend> backends();

// What `auto` is for these ranks: nccl where buffers are in device memory, every rank has a GPU of
// its own and nothing is asked for that only native has; else native. What speaks against nccl is
// logged once. Collective where buffers are on devices; the same answer on every rank.
std::string choose_backend(const World& world, Store& store, const CommunicatorOptions& options);
// The first two ranks with one GPU, by device_identity() of each; an empty one is nobody's.
std::optional<std::pair<int, int>> ranks_on_one_gpu(std::span<const std::string> identities);

// One rank: every operation is a copy; no store, no thread. `name` is what backend() says,
// `member` this rank as the job numbers it: Errors name that.
std::unique_ptr<Communicator> make_single_communicator(std::string name,
                                                       const CommunicatorOptions& options,
                                                       int member = 0);

// For backends whose symmetric memory is ordinary memory; counted in `counted_by` unless null.
std::unique_ptr<MemoryResource> make_counted_host_memory(CountingMemory* counted_by);

// The makers, each in the namespace of its room.
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
// Why nccl cannot be had here, whatever the ranks: it was not built, or an old library was loaded;
// empty where it can.
std::string nccl_problem();
}  // namespace nccl
namespace native {
// What `native` is inside a host: shared memory. `prefix`: of its keys in the store, new for each
// group; collective among the group's ranks. `members`: see Group.
std::unique_ptr<Communicator> make_node_communicator(int rank, int size, Store& store,
                                                     const std::string& prefix,
                                                     const CommunicatorOptions& options,
                                                     std::vector<int> members = {});
}  // namespace native

}  // namespace shoal::collectives
