// Chooses the form of `native` for a job: shared memory on one host; hierarchical on several; the
// network alone if every rank has its own host or a transport is requested.
#include <array>

#include <fmt/ranges.h>
#include <unistd.h>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/hierarchical/hierarchical_communicator.h"
#include "shoal/collectives/backend/net/net_communicator.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/collectives/watched_store.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/runtime/rendezvous/roll_call.h"

namespace shoal::collectives::hierarchical {
namespace {

std::string host_of(const World& world) {
  if (!world.host.empty()) return world.host;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Returns host names by rank. At the deadline, the error names all ranks that did not come.
std::vector<std::string> exchange_hosts(const World& world, Store& store, const std::string& prefix,
                                        Deadline deadline) {
  std::vector<std::string> hosts;
  const RollCall roll = call_roll(store, prefix + "/host", world.rank, world.size, host_of(world),
                                  deadline, [&](int rank, std::string_view card) {
                                    hosts.push_back(read_card(rank, "hosts", card, card_name));
                                  });
  if (!roll.missing.empty())
    throw Error(ErrorCode::timeout,
                fmt::format("native: rank(s) {} did not join the group in time",
                            fmt::join(roll.missing, ", ")),
                "see whether they started and why they stopped")
        .at_rank(world.rank)
        .with_peer(roll.missing.front())
        .in_operation("make_communicator");
  return hosts;
}

// While the endpoint is made, control links watch the other ranks and report a failure of this rank
// to them.
std::unique_ptr<transport::Endpoint> make_endpoint(const CommunicatorOptions& options,
                                                   const World& world, const Placement& where,
                                                   Store& store, const std::string& prefix,
                                                   Deadline deadline,
                                                   transport::ControlLinks& control,
                                                   const net::RankNames& names) {
  WatchedStore watched(store, &control, names, "make_communicator");
  try {
    fabric::FabricOptions fabric = fabric::fabric_options(options.transport);
    if (!options.rdma_device.is_cpu() && fabric::gpudirect_is_wanted())
      fabric.cuda_device = options.rdma_device.index;
    return fabric::make_fabric_endpoint(
        fabric, world.rank, world.size, where.local_rank(world.rank),
        where.local_size(where.node_of(world.rank)), watched, prefix, deadline);
  } catch (const Error& error) {
    control.tell(transport::ControlNews::Kind::failed, error.what(),
                 static_cast<std::uint32_t>(error.code()));
    throw;
  }
}

// Always logs the transport: running without EFA costs most of a cluster's speed.
void log_transport(const CommunicatorOptions& options, int ranks, int hosts,
                   const std::string& name) {
  const bool fell_back =
      fabric::fabric_options(options.transport).provider.empty() && !name.starts_with("efa");
  log::once(log::Level::info, "native-transport",
            fmt::format("native: {} ranks on {} hosts over {}{}", ranks, hosts, name,
                        fell_back ? "; no EFA was found" : ""));
}

}  // namespace

std::unique_ptr<Communicator> make_native_communicator(const World& world, Store& store,
                                                       const CommunicatorOptions& options) {
  // Each rank counts its own communicators; all make them in the same order, so the counts agree.
  const auto generation = store.add(fmt::format("shoal/native/generation/{}", world.rank), 1);
  const std::string prefix = fmt::format("shoal/native/{}", generation);
  const auto deadline = Deadline::in_seconds(options.deadline_seconds);
  const auto hosts = exchange_hosts(world, store, prefix, deadline);
  const Placement where(hosts);
  const bool named = !options.transport.empty() && options.transport != "shm";
  if (where.nodes() == 1 && !named)
    return native::make_node_communicator(world.rank, world.size, store, prefix, options);
  if (options.transport == "shm")
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("transport shm, but the {} ranks are on {} hosts", world.size, where.nodes()),
        "name a network transport, or none")
        .at_rank(world.rank);

  const int local_size = where.local_size(where.node_of(world.rank));
  auto control = std::make_unique<transport::ControlLinks>(
      world.rank, world.size, store, prefix + "/control", deadline,
      transport::ControlLinks::patience(options.deadline_seconds));
  const net::RankNames names{world.rank, world.size,
                             where.nodes() == 1 ? std::vector<std::string>{} : hosts};
  auto endpoint =
      make_endpoint(options, world, where, store, prefix + "/fabric", deadline, *control, names);
  log_transport(options, world.size, where.nodes(), endpoint->name());
  const auto engine = net::make_net_engine(std::move(endpoint), std::move(control), local_size,
                                           options, names.hosts);
  HierarchicalCommunicator::Plan plan;
  plan.first_id = engine->next_group();
  plan.flat =
      net::make_world_group(engine, world.size, options, 1, fmt::format("native/{}", generation));
  if (where.nodes() == 1 || where.nodes() == world.size)
    return std::make_unique<net::NetCommunicator>(std::move(plan.flat), options);
  plan.hosts = hosts;
  plan.prefix = prefix;
  plan.make_node = [&store](int rank, int size, const std::string& inner,
                            const CommunicatorOptions& of, std::vector<int> members) {
    return native::make_node_communicator(rank, size, store, inner, of, std::move(members));
  };
  return std::make_unique<HierarchicalCommunicator>(std::move(plan), options);
}

}  // namespace shoal::collectives::hierarchical
