// Code shared by Communicators on a NetEngine: the group of all their ranks, splitting, failing.
//
// A failure or abort of one group ends all groups on its engine.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "shoal/collectives/algorithm/program.h"
#include "shoal/collectives/backend/departure.h"
#include "shoal/collectives/backend/device_rdma.h"
#include "shoal/collectives/backend/movable_deadline.h"
#include "shoal/collectives/backend/net/net_group.h"
#include "shoal/collectives/backend_communicator.h"

namespace shoal::collectives::net {

using NetWork = EngineWork<NetEngine, InFlight>;

// Memory from `upstream`. Registers larger allocations with the engine's Endpoint.
class RegisteredMemory final : public MemoryResource {
 public:
  RegisteredMemory(std::shared_ptr<NetEngine> engine, MemoryResource& upstream)
      : engine_(std::move(engine)), upstream_(upstream) {}
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return upstream_.device(); }
  std::string name() const override;

 private:
  std::shared_ptr<NetEngine> engine_;
  MemoryResource& upstream_;
  std::mutex mutex_;  // lock before the engine's mutex
  std::map<void*, std::unique_ptr<Registration>> registrations_;
};

class EngineCommunicator : public BackendCommunicator,
                           public DeviceRdma,
                           public Departure,
                           public MovableDeadline {
 public:
  // Number of group ids that a Communicator of `size` ranks reserves. Its own group takes the first
  // ones. At most 2 * size follow for the rails of a hierarchical Communicator, then two for
  // exchanges between hosts.
  static constexpr std::uint32_t ids_of(int size) {
    return group_ids(size) + 2 * static_cast<std::uint32_t>(size) + 2;
  }

  EngineCommunicator(std::unique_ptr<NetGroup> flat, const CommunicatorOptions& options);
  ~EngineCommunicator() override;

  int rank() const final { return flat_->rank(); }
  int size() const final { return flat_->size(); }
  std::string backend() const final { return "native"; }
  std::unique_ptr<Registration> register_buffer(void* data, std::int64_t bytes) final;

  void leave() override;
  void set_deadline_seconds(double seconds) override { engine_->set_deadline_seconds(seconds); }

  std::string rdma_problem(Device device) const final;
  std::unique_ptr<Registration> register_on(Device device, void* data, std::int64_t bytes) final;
  std::int64_t eager_bytes() const final { return engine_->eager_bytes(); }
  WorkPtr exchange(Call call, algorithm::Program program) final;

 protected:
  WorkPtr submit(Call&& call) override;
  double deadline_seconds() const final { return engine_->deadline_seconds(); }
  std::vector<Place> exchange_places(Place own) final;

  const std::shared_ptr<NetEngine> engine_;
  const std::unique_ptr<NetGroup> flat_;
  const CommunicatorOptions options_;
  std::map<std::int64_t, std::uint32_t> split_ids_;  // by color, for the current split

 private:
  bool left_ = false;
};

}  // namespace shoal::collectives::net
