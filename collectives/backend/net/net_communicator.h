// A Communicator whose ranks, on one host or several, all communicate through one Endpoint.
#pragma once

#include "shoal/collectives/backend/net/engine_communicator.h"

namespace shoal::collectives::net {

class NetCommunicator final : public EngineCommunicator {
 public:
  NetCommunicator(std::unique_ptr<NetGroup> group, const CommunicatorOptions& options);

  MemoryResource& memory_resource() override { return memory_; }
  CommunicatorStatistics statistics() const override { return flat_->statistics(); }
  void abort(std::string_view reason) override { engine_->abort(reason); }

 private:
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override;

  const std::unique_ptr<MemoryResource> host_;
  RegisteredMemory memory_;
};

// Make the engine of all processes that `endpoint` reaches, and the group of all these ranks.
// `hosts`: see NetEngine::Options; `first` and `name`: see NetGroup.
std::shared_ptr<NetEngine> make_net_engine(std::unique_ptr<transport::Endpoint> endpoint,
                                           std::unique_ptr<transport::ControlLinks> control,
                                           int ranks_on_host, const CommunicatorOptions& options,
                                           std::vector<std::string> hosts = {});
std::unique_ptr<NetGroup> make_world_group(const std::shared_ptr<NetEngine>& engine, int size,
                                           const CommunicatorOptions& options,
                                           std::uint32_t first = 1, std::string name = "world");
// Makes an engine, its group of all ranks and their Communicator.
std::unique_ptr<Communicator> make_net_communicator(
    std::unique_ptr<transport::Endpoint> endpoint, std::unique_ptr<transport::ControlLinks> control,
    int ranks_on_host, const CommunicatorOptions& options, std::uint32_t first = 1);

}  // namespace shoal::collectives::net
