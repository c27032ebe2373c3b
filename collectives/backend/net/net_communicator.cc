#include "shoal/collectives/backend/net/net_communicator.h"

#include <numeric>

#include "shoal/collectives/backend/backends.h"

namespace shoal::collectives::net {

NetCommunicator::NetCommunicator(std::unique_ptr<NetGroup> group,
                                 const CommunicatorOptions& options)
    : EngineCommunicator(std::move(group), options),
      host_(make_counted_host_memory(options.counted_by)),
      memory_(engine_, *host_) {}

std::unique_ptr<Communicator> NetCommunicator::make_split(const SplitPlan& plan) {
  if (plan.ranks.empty()) return nullptr;
  std::vector<int> members;
  for (const int peer : plan.ranks)
    members.push_back(flat_->members()[static_cast<std::size_t>(peer)]);
  if (members.size() == 1) return make_single_communicator(backend(), options_, members.front());
  return std::make_unique<NetCommunicator>(
      std::make_unique<NetGroup>(engine_, split_ids_.at(plan.color), std::move(members), plan.rank,
                                 options_, flat_->split_name(plan.ordinal, plan.color)),
      options_);
}

std::shared_ptr<NetEngine> make_net_engine(std::unique_ptr<transport::Endpoint> endpoint,
                                           std::unique_ptr<transport::ControlLinks> control,
                                           int ranks_on_host, const CommunicatorOptions& options,
                                           std::vector<std::string> hosts) {
  return std::make_shared<NetEngine>(
      std::move(endpoint), std::move(control),
      NetEngine::Options{options.deadline_seconds, ranks_on_host, std::move(hosts)});
}

std::unique_ptr<NetGroup> make_world_group(const std::shared_ptr<NetEngine>& engine, int size,
                                           const CommunicatorOptions& options, std::uint32_t first,
                                           std::string name) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  const std::uint32_t id = engine->next_group();
  engine->set_next_group(id + EngineCommunicator::ids_of(size));
  return std::make_unique<NetGroup>(engine, id, std::move(members), engine->rank(), options,
                                    std::move(name), first);
}

std::unique_ptr<Communicator> make_net_communicator(
    std::unique_ptr<transport::Endpoint> endpoint, std::unique_ptr<transport::ControlLinks> control,
    int ranks_on_host, const CommunicatorOptions& options, std::uint32_t first) {
  const int size = endpoint->size();
  const auto engine =
      make_net_engine(std::move(endpoint), std::move(control), ranks_on_host, options);
  return std::make_unique<NetCommunicator>(make_world_group(engine, size, options, first), options);
}

}  // namespace shoal::collectives::net
