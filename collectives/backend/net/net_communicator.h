// A Communicator whose ranks all speak through one Endpoint, wherever they are.
#pragma once

#include <memory>
#include <vector>

#include "shoal/collectives/backend/call_communicator.h"
#include "shoal/collectives/backend/net/net_group.h"

namespace shoal::collectives {

class NetWork final : public Work {
 public:
  NetWork(std::shared_ptr<NetEngine> engine, std::shared_ptr<InFlight> what)
      : engine_(std::move(engine)), what_(std::move(what)) {}
  bool test() override { return engine_->test(*what_); }
  void wait(Deadline deadline) override { engine_->wait(*what_, deadline); }
  double default_deadline_seconds() const override { return engine_->deadline_seconds(); }

 private:
  std::shared_ptr<NetEngine> engine_;  // outlives the Communicator, so that a late wait can throw
  std::shared_ptr<InFlight> what_;
};

// Host memory, registered with the Endpoint where that pays.
class RegisteredMemory final : public MemoryResource {
 public:
  RegisteredMemory(std::shared_ptr<NetEngine> engine, CountingMemory* counted_by);
  ~RegisteredMemory() override;
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return Device::cpu(); }
  std::string name() const override;

 private:
  std::shared_ptr<NetEngine> engine_;
  std::unique_ptr<MemoryResource> host_;
  std::mutex mutex_;
  std::map<void*, std::unique_ptr<Registration>> registrations_;
};

// Groups that come from one engine share its fate: a failure or abort of one ends all of them.
class NetCommunicator final : public CallCommunicator {
 public:
  NetCommunicator(std::unique_ptr<NetGroup> group, const CommunicatorOptions& options);
  ~NetCommunicator() override;

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string backend() const override { return "native"; }
  MemoryResource& memory_resource() override { return memory_; }
  std::unique_ptr<Registration> register_buffer(void* data, std::int64_t bytes) override;
  CommunicatorStatistics statistics() const override { return group_->statistics(); }
  void abort(std::string_view reason) override { engine_->abort(reason); }

 private:
  WorkPtr submit(Call call) override;
  double deadline_seconds() const override { return engine_->deadline_seconds(); }
  std::vector<Place> exchange_places(Place own) override;
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override;

  const std::shared_ptr<NetEngine> engine_;
  std::unique_ptr<NetGroup> group_;
  const CommunicatorOptions options_;
  RegisteredMemory memory_;
  std::map<std::int64_t, std::uint32_t> split_ids_;  // by color, of the split under way
};

// The group of all processes that `endpoint` reaches. `first`: see NetGroup.
std::unique_ptr<Communicator> make_net_communicator(std::unique_ptr<Endpoint> endpoint,
                                                    std::unique_ptr<ControlLinks> control,
                                                    int ranks_on_host,
                                                    const CommunicatorOptions& options,
                                                    std::uint32_t first = 1);

}  // namespace shoal::collectives
