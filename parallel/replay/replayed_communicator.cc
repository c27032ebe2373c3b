#include "shoal/parallel/replay/replayed_communicator.h"

#include <algorithm>
#include <utility>

#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/replay/noted_works.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::Call;
using collectives::Communicator;
using collectives::WorkPtr;

class ReplayedCommunicator final : public Communicator {
 public:
  ReplayedCommunicator(std::unique_ptr<Communicator> owned, Communicator& inner,
                       const nn::HostWork& host_work, ReplayedMemories memories)
      : owned_(std::move(owned)),
        inner_(inner),
        host_work_(host_work),
        works_(host_work),
        memories_(std::move(memories)),
        memory_(inner.memory_resource()) {
    memories_->push_back(&memory_);
  }
  // Runs before the memory is freed.
  ~ReplayedCommunicator() override {
    works_.give_up([this] { inner_.abort("a step ended in the middle of its replay"); });
    std::erase(*memories_, &memory_);
  }
  ReplayedCommunicator(const ReplayedCommunicator&) = delete;
  ReplayedCommunicator& operator=(const ReplayedCommunicator&) = delete;

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string backend() const override { return inner_.backend(); }
  MemoryResource& memory_resource() override { return memory_; }
  std::unique_ptr<collectives::Registration> register_buffer(void* data,
                                                             std::int64_t bytes) override {
    return inner_.register_buffer(data, bytes);
  }
  collectives::CommunicatorStatistics statistics() const override { return inner_.statistics(); }
  Stream stream() const override { return inner_.stream(); }
  Communicator& host() override {
    SHOAL_CHECK(!host_work_.captured(), "hosts exchange values in the middle of the step");
    return inner_.host();
  }
  bool can_capture() const override { return inner_.can_capture(); }
  WorkPtr watch(Stream stream) override { return inner_.watch(stream); }
  void abort(std::string_view reason) override { inner_.abort(reason); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    std::unique_ptr<Communicator> part = inner_.split(color, key);
    if (!part) return nullptr;
    Communicator& all = *part;
    return std::make_unique<ReplayedCommunicator>(std::move(part), all, host_work_, memories_);
  }

 private:
  bool notes() const { return works_.notes() && !inner_.can_capture(); }
  double deadline_seconds() const override { return inner_.deadline_seconds(); }
  DeviceType device_type() const override { return inner_.device_type(); }
  WorkPtr repeat(const collectives::PlainCall& call) override {
    return notes() ? nullptr : repeat_in(inner_, call);
  }
  WorkPtr submit(Call&& call) override {
    if (!notes()) return inner_.call(std::move(call));
    return works_.note([&inner = inner_, call = std::move(call)] { return inner.call(call); });
  }
  WorkPtr submit_group(std::vector<Call> calls) override {
    const auto begin = [&inner = inner_, calls = std::move(calls)] {
      inner.begin_group();
      for (const Call& call : calls) inner.call(call);
      return inner.end_group();
    };
    return notes() ? works_.note(begin) : begin();
  }

  const std::unique_ptr<Communicator> owned_;  // null: the caller owns it
  Communicator& inner_;
  const nn::HostWork& host_work_;
  NotedWorks works_;
  const ReplayedMemories memories_;
  nn::PlannedMemory memory_;
};

}  // namespace

std::unique_ptr<Communicator> make_replayed_communicator(Communicator& inner,
                                                         const nn::HostWork& host_work,
                                                         ReplayedMemories memories) {
  return std::make_unique<ReplayedCommunicator>(nullptr, inner, host_work, std::move(memories));
}

}  // namespace shoal::parallel
