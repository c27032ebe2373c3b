#include "shoal/parallel/replay/replayed_communicator.h"

#include <algorithm>
#include <utility>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::parallel {

using collectives::Call;
using collectives::Communicator;
using collectives::WorkPtr;

class ReplayedCommunicator::NodeWork final : public collectives::Work {
 public:
  explicit NodeWork(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}
  bool test() override { return false; }
  void wait(Deadline) override {
    throw_error(ErrorCode::internal,
                "what ranks exchange in a captured step is waited for by its host");
  }
  double default_deadline_seconds() const override { return 0; }
  void block_stream(Stream stream) override {
    // Removed first: after an Error no call may wait for it again.
    host_node([slot = slot_, stream] {
      const WorkPtr work = std::move(slot->work);
      if (work) work->block_stream(stream);
    });
  }

 private:
  std::shared_ptr<Slot> slot_;
};

ReplayedCommunicator::ReplayedCommunicator(std::unique_ptr<Communicator> owned, Communicator& inner,
                                           std::shared_ptr<Memories> memories)
    : owned_(std::move(owned)),
      inner_(collectives::backend_of(inner)),
      memories_(std::move(memories)),
      memory_(inner.memory_resource()) {
  memories_->push_back(&memory_);
}

ReplayedCommunicator::~ReplayedCommunicator() {
  end_operations("a step ended in the middle of its replay");
  std::erase(*memories_, &memory_);
}

std::unique_ptr<collectives::Registration> ReplayedCommunicator::register_buffer(
    void* data, std::int64_t bytes) {
  return inner_.register_buffer(data, bytes);
}

collectives::CommunicatorStatistics ReplayedCommunicator::statistics() const {
  return inner_.statistics();
}

Communicator& ReplayedCommunicator::host() {
  SHOAL_CHECK(!is_capturing(), "hosts exchange values in the middle of the step");
  return inner_.host();
}

std::unique_ptr<Communicator> ReplayedCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> part = inner_.split(color, key);
  if (!part) return nullptr;
  Communicator& all = *part;
  return std::unique_ptr<Communicator>(new ReplayedCommunicator(std::move(part), all, memories_));
}

WorkPtr ReplayedCommunicator::watch(Stream stream) {
  SHOAL_CHECK(!is_capturing(), "the host reads numbers in the middle of the update");
  return inner_.watch(stream);
}

void ReplayedCommunicator::abort(std::string_view reason) {
  inner_.abort(reason);
  if (std::this_thread::get_id() == captures_) end_operations(reason);
}

bool ReplayedCommunicator::makes_nodes() const { return is_capturing() && !inner_.can_capture(); }

WorkPtr ReplayedCommunicator::repeat(const collectives::PlainCall& call) {
  return makes_nodes() ? nullptr : inner_.again(call);
}

WorkPtr ReplayedCommunicator::submit(Call&& call) {
  if (!makes_nodes()) return inner_.call(std::move(call));
  return make_node([&inner = inner_, call = std::move(call)] { return inner.call(call); });
}

WorkPtr ReplayedCommunicator::submit_group(std::vector<Call> calls) {
  const auto begin = [&inner = inner_, calls = std::move(calls)] {
    inner.begin_group();
    for (const Call& call : calls) inner.call(call);
    return inner.end_group();
  };
  return makes_nodes() ? make_node(begin) : begin();
}

WorkPtr ReplayedCommunicator::make_node(Begin begin) {
  // Slots that only this list still holds belong to destroyed graphs.
  std::erase_if(slots_, [](const std::shared_ptr<Slot>& slot) {
    return slot.use_count() == 1 && !slot->work;
  });
  captures_ = std::this_thread::get_id();
  auto slot = std::make_shared<Slot>();
  slots_.push_back(slot);
  host_node([slot, begin = std::move(begin)] {
    SHOAL_CHECK(!slot->work, "what ranks exchange in a captured step is not waited for in it");
    slot->work = begin();
  });
  return std::make_unique<NodeWork>(std::move(slot));
}

// After a failed wait, the communicator no longer touches this rank's buffers.
void ReplayedCommunicator::end_operations(std::string_view reason) noexcept {
  try {
    for (const std::shared_ptr<Slot>& slot : slots_) {
      if (!slot->work || slot->work->test()) continue;
      inner_.abort(reason);
      slot->work->wait(deadlines::at_once());
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): expected, it has failed
  }
}

}  // namespace shoal::parallel
