// A rank whose peers are not there: nothing is moved, and whether what it began is done is the
// test's to say. For what hangs on when operations end, in one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::test {

class IdleCommunicator final : public collectives::Communicator {
 public:
  using WorkPtr = collectives::WorkPtr;
  using Counts = collectives::Counts;
  using Reduction = collectives::Reduction;

  // `done` is asked by each Work::test(). Both outlive the Communicator.
  IdleCommunicator(int rank, int size, MemoryResource& memory, const std::function<bool()>& done)
      : rank_(rank), size_(size), memory_(memory), done_(done) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string backend() const override { return "idle"; }
  MemoryResource& memory_resource() override { return memory_; }
  collectives::CommunicatorStatistics statistics() const override { return {}; }
  WorkPtr all_reduce(const void*, void*, std::int64_t, DType, Reduction, Stream) override {
    return begun();
  }
  WorkPtr reduce_scatter(const void*, void*, std::int64_t, DType, Reduction, Stream) override {
    return begun();
  }
  WorkPtr all_gather(const void*, void*, std::int64_t, DType, Stream) override { return begun(); }
  WorkPtr reduce_scatter_v(const void*, void*, Counts, DType, Reduction, Stream) override {
    return begun();
  }
  WorkPtr all_gather_v(const void*, void*, Counts, DType, Stream) override { return begun(); }
  WorkPtr broadcast(void*, std::int64_t, DType, int, Stream) override { return begun(); }
  WorkPtr reduce(const void*, void*, std::int64_t, DType, Reduction, int, Stream) override {
    return begun();
  }
  WorkPtr gather(const void*, void*, std::int64_t, DType, int, Stream) override { return begun(); }
  WorkPtr scatter(const void*, void*, std::int64_t, DType, int, Stream) override { return begun(); }
  WorkPtr all_to_all(const void*, void*, std::int64_t, DType, Stream) override { return begun(); }
  WorkPtr all_to_all_v(const void*, Counts, void*, Counts, DType, Stream) override {
    return begun();
  }
  WorkPtr barrier(Stream) override { return begun(); }
  WorkPtr send(const void*, std::int64_t, DType, int, Stream) override { return begun(); }
  WorkPtr recv(void*, std::int64_t, DType, int, Stream) override { return begun(); }
  void begin_group() override {}
  WorkPtr end_group() override { return begun(); }
  // Color 0 is the others' too, any other one its own alone, as those of a mesh's last rank are.
  std::unique_ptr<Communicator> split(int color, int) override {
    if (color < 0) return nullptr;
    return color == 0 ? std::make_unique<IdleCommunicator>(rank_, size_, memory_, done_)
                      : std::make_unique<IdleCommunicator>(0, 1, memory_, done_);
  }
  void abort(std::string_view) override {}

 private:
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
  WorkPtr begun() const { return std::make_unique<Begun>(done_); }

  const int rank_, size_;
  MemoryResource& memory_;
  const std::function<bool()>& done_;
};

}  // namespace shoal::test
