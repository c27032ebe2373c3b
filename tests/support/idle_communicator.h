// A rank without peers. Its operations move no data, and the test decides when they are done. It
// lets one thread test code that depends on when operations end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shoal/collectives/backend_communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::test {

class IdleCommunicator final : public collectives::BackendCommunicator {
 public:
  using WorkPtr = collectives::WorkPtr;

  // Each Work::test() calls `done`. `done` and `memory` must outlive the Communicator.
  IdleCommunicator(int rank, int size, MemoryResource& memory, const std::function<bool()>& done)
      : rank_(rank), size_(size), memory_(memory), done_(done) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string backend() const override { return "idle"; }
  MemoryResource& memory_resource() override { return memory_; }
  collectives::CommunicatorStatistics statistics() const override { return {}; }
  double deadline_seconds() const override { return 1; }
  DeviceType device_type() const override { return memory_.device().type; }
  // Color 0 keeps all ranks. Any other color has only this rank, as in the groups of a mesh's last
  // rank.
  std::unique_ptr<Communicator> split(int color, int) override {
    if (color < 0) return nullptr;
    return color == 0 ? std::make_unique<IdleCommunicator>(rank_, size_, memory_, done_)
                      : std::make_unique<IdleCommunicator>(0, 1, memory_, done_);
  }
  void abort(std::string_view) override {}

 private:
  WorkPtr submit(collectives::Call&&) override { return std::make_unique<Begun>(done_); }
  WorkPtr submit_group(std::vector<collectives::Call>) override {
    return std::make_unique<Begun>(done_);
  }

  class Begun final : public collectives::Work {
   public:
    explicit Begun(const std::function<bool()>& done) : done_(done) {}
    bool test() override { return done_(); }
    void wait(Deadline) override {}
    double default_deadline_seconds() const override { return 1; }
    void block_stream(Stream) override {}

   private:
    const std::function<bool()>& done_;
  };
  const int rank_, size_;
  MemoryResource& memory_;
  const std::function<bool()>& done_;
};

}  // namespace shoal::test
