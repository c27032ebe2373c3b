// Communicators between the threads of a test, over the loopback and its faults.
#pragma once

#include <memory>

#include "shoal/collectives/backend/net/net_communicator.h"
#include "shoal/collectives/transport/fault_endpoint.h"
#include "shoal/collectives/transport/loopback_endpoint.h"

namespace shoal::collectives::test {

struct LoopbackRanks {
  explicit LoopbackRanks(int size, std::int64_t eager_bytes = 4096)
      : fabric(std::make_shared<LoopbackFabric>(size, LoopbackOptions{eager_bytes})),
        control(std::make_shared<FaultControl>()) {}

  std::unique_ptr<Endpoint> endpoint(int rank, const FaultOptions* faults = nullptr) const {
    auto plain = make_loopback_endpoint(fabric, rank);
    return faults ? make_fault_endpoint(std::move(plain), *faults, control) : std::move(plain);
  }
  // With control connections.
  std::unique_ptr<Communicator> communicator(const World& world, Store& store,
                                             const CommunicatorOptions& options,
                                             const FaultOptions* faults = nullptr,
                                             std::uint32_t first = 1) const {
    return make_net_communicator(
        endpoint(world.rank, faults),
        std::make_unique<ControlLinks>(world.rank, world.size, store, "test/control",
                                       Deadline::in_seconds(options.deadline_seconds)),
        world.local_size, options, first);
  }

  std::shared_ptr<LoopbackFabric> fabric;
  std::shared_ptr<FaultControl> control;
};

}  // namespace shoal::collectives::test
