#include "shoal/parallel/replay/replayed_communicator.h"

#include <algorithm>
#include <utility>

#include "shoal/parallel/replay/noted_works.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::Communicator;
using collectives::Counts;
using collectives::Reduction;
using collectives::WorkPtr;

std::vector<std::int64_t> kept(Counts counts) { return {counts.begin(), counts.end()}; }

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

  WorkPtr all_reduce(const void* send, void* recv, std::int64_t count, DType dtype, Reduction op,
                     Stream stream) override {
    return call(
        [=](Communicator& to) { return to.all_reduce(send, recv, count, dtype, op, stream); });
  }
  WorkPtr reduce_scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                         Reduction op, Stream stream) override {
    return call([=](Communicator& to) {
      return to.reduce_scatter(send, recv, recv_count, dtype, op, stream);
    });
  }
  WorkPtr all_gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                     Stream stream) override {
    return call(
        [=](Communicator& to) { return to.all_gather(send, recv, send_count, dtype, stream); });
  }
  WorkPtr reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype, Reduction op,
                           Stream stream) override {
    return call([=, counts = kept(counts)](Communicator& to) {
      return to.reduce_scatter_v(send, recv, counts, dtype, op, stream);
    });
  }
  WorkPtr all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                       Stream stream) override {
    return call([=, counts = kept(counts)](Communicator& to) {
      return to.all_gather_v(send, recv, counts, dtype, stream);
    });
  }
  WorkPtr broadcast(void* data, std::int64_t count, DType dtype, int root, Stream stream) override {
    return call([=](Communicator& to) { return to.broadcast(data, count, dtype, root, stream); });
  }
  WorkPtr reduce(const void* send, void* recv, std::int64_t count, DType dtype, Reduction op,
                 int root, Stream stream) override {
    return call(
        [=](Communicator& to) { return to.reduce(send, recv, count, dtype, op, root, stream); });
  }
  WorkPtr gather(const void* send, void* recv, std::int64_t send_count, DType dtype, int root,
                 Stream stream) override {
    return call(
        [=](Communicator& to) { return to.gather(send, recv, send_count, dtype, root, stream); });
  }
  WorkPtr scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype, int root,
                  Stream stream) override {
    return call(
        [=](Communicator& to) { return to.scatter(send, recv, recv_count, dtype, root, stream); });
  }
  WorkPtr all_to_all(const void* send, void* recv, std::int64_t count, DType dtype,
                     Stream stream) override {
    return call([=](Communicator& to) { return to.all_to_all(send, recv, count, dtype, stream); });
  }
  WorkPtr all_to_all_v(const void* send, Counts send_counts, void* recv, Counts recv_counts,
                       DType dtype, Stream stream) override {
    return call([=, sent = kept(send_counts), received = kept(recv_counts)](Communicator& to) {
      return to.all_to_all_v(send, sent, recv, received, dtype, stream);
    });
  }
  WorkPtr barrier(Stream stream) override {
    return call([=](Communicator& to) { return to.barrier(stream); });
  }
  WorkPtr send(const void* data, std::int64_t count, DType dtype, int peer,
               Stream stream) override {
    return call([=](Communicator& to) { return to.send(data, count, dtype, peer, stream); });
  }
  WorkPtr recv(void* data, std::int64_t count, DType dtype, int peer, Stream stream) override {
    return call([=](Communicator& to) { return to.recv(data, count, dtype, peer, stream); });
  }

  void begin_group() override {
    if (!notes()) return inner_.begin_group();
    group_.emplace_back();
  }
  WorkPtr end_group() override {
    if (!notes()) return inner_.end_group();
    Group calls = std::move(group_.back());
    group_.pop_back();
    return call([calls = std::move(calls)](Communicator& to) {
      to.begin_group();
      for (const Call& one : calls) one(to);
      return to.end_group();
    });
  }

 private:
  using Call = std::function<WorkPtr(Communicator&)>;
  using Group = std::vector<Call>;

  bool notes() const { return works_.notes() && !inner_.can_capture(); }
  // Does not build a std::function unless a step is captured, so calls cost no more than `inner`'s.
  template <class Made>
  WorkPtr call(Made&& made) {
    if (!notes()) {
      group_.clear();  // left by a failed capture
      return made(inner_);
    }
    if (!group_.empty()) {
      group_.back().push_back(std::forward<Made>(made));
      return nullptr;
    }
    return works_.note(
        [inner = &inner_, noted = Call(std::forward<Made>(made))] { return noted(*inner); });
  }

  const std::unique_ptr<Communicator> owned_;  // null: the caller owns it
  Communicator& inner_;
  const nn::HostWork& host_work_;
  NotedWorks works_;
  const ReplayedMemories memories_;
  nn::PlannedMemory memory_;
  std::vector<Group> group_;  // begun groups of a captured step, innermost last
};

}  // namespace

std::unique_ptr<Communicator> make_replayed_communicator(Communicator& inner,
                                                         const nn::HostWork& host_work,
                                                         ReplayedMemories memories) {
  return std::make_unique<ReplayedCommunicator>(nullptr, inner, host_work, std::move(memories));
}

}  // namespace shoal::parallel
