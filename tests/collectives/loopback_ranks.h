// Communicators between the threads of a test, over the loopback and its faults.
#pragma once

#include <memory>

#include "fault_endpoint.h"
#include "loopback_endpoint.h"

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/hierarchical/hierarchical_communicator.h"
#include "shoal/collectives/backend/net/net_communicator.h"

namespace shoal::collectives::test {

struct LoopbackRanks {
  explicit LoopbackRanks(int size, std::int64_t eager_bytes = 4096)
      : fabric(std::make_shared<transport::LoopbackFabric>(
            size, transport::LoopbackOptions{eager_bytes})),
        control(std::make_shared<transport::FaultControl>()) {}

  std::unique_ptr<transport::Endpoint> endpoint(
      int rank, const transport::FaultOptions* faults = nullptr) const {
    auto plain = transport::make_loopback_endpoint(fabric, rank);
    return faults ? transport::make_fault_endpoint(std::move(plain), *faults, control)
                  : std::move(plain);
  }
  // Makes a communicator with control connections.
  std::unique_ptr<Communicator> communicator(const World& world, Store& store,
                                             const CommunicatorOptions& options,
                                             const transport::FaultOptions* faults = nullptr,
                                             std::uint32_t first = 1) const {
    return net::make_net_communicator(
        endpoint(world.rank, faults),
        std::make_unique<transport::ControlLinks>(world.rank, world.size, store, "test/control",
                                                  Deadline::in_seconds(options.deadline_seconds)),
        world.local_size, options, first);
  }

  // Makes a communicator over emulated hosts: shared memory inside a host, the loopback between
  // hosts.
  std::unique_ptr<Communicator> hierarchical(
      const World& world, Store& store, const std::vector<std::string>& hosts,
      const CommunicatorOptions& options, const transport::FaultOptions* faults = nullptr,
      std::shared_ptr<net::NetEngine>* used = nullptr) const {
    const auto engine = net::make_net_engine(
        endpoint(world.rank, faults),
        std::make_unique<transport::ControlLinks>(world.rank, world.size, store, "test/control",
                                                  Deadline::in_seconds(options.deadline_seconds)),
        world.local_size, options);
    if (used) *used = engine;
    hierarchical::HierarchicalCommunicator::Plan plan;
    plan.first_id = engine->next_group();
    plan.flat = net::make_world_group(engine, world.size, options);
    plan.hosts = hosts;
    plan.prefix = "test/hierarchical";
    plan.make_node = [&store](int rank, int size, const std::string& prefix,
                              const CommunicatorOptions& of, std::vector<int> members) {
      return native::make_node_communicator(rank, size, store, prefix, of, std::move(members));
    };
    return std::make_unique<hierarchical::HierarchicalCommunicator>(std::move(plan), options);
  }

  std::shared_ptr<transport::LoopbackFabric> fabric;
  std::shared_ptr<transport::FaultControl> control;
};

}  // namespace shoal::collectives::test
