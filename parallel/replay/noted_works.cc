#include "shoal/parallel/replay/noted_works.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

class NotedWorks::Noted final : public collectives::Work {
 public:
  Noted(std::shared_ptr<Slot> slot, const nn::HostWork& host_work)
      : slot_(std::move(slot)), host_work_(host_work) {}
  bool test() override { return false; }
  void wait(Deadline) override {
    throw_error(ErrorCode::internal,
                "what ranks exchange in a captured step is waited for by its host");
  }
  double default_deadline_seconds() const override { return 0; }
  void block_stream(Stream stream) override {
    // Removed first: after an Error no call may wait for it again.
    host_work_.run([slot = slot_, stream] {
      const collectives::WorkPtr work = std::move(slot->work);
      if (work) work->block_stream(stream);
    });
  }

 private:
  std::shared_ptr<Slot> slot_;
  const nn::HostWork& host_work_;
};

collectives::WorkPtr NotedWorks::note(std::function<collectives::WorkPtr()> begin) {
  // Slots that only this list still holds belong to destroyed graphs.
  std::erase_if(slots_, [](const std::shared_ptr<Slot>& slot) {
    return slot.use_count() == 1 && !slot->work;
  });
  auto slot = std::make_shared<Slot>();
  slots_.push_back(slot);
  host_work_.run([slot, begin = std::move(begin)] {
    SHOAL_CHECK(!slot->work, "what ranks exchange in a captured step is not waited for in it");
    slot->work = begin();
  });
  return std::make_unique<Noted>(std::move(slot), host_work_);
}

void NotedWorks::give_up(const std::function<void()>& abort) noexcept {
  try {
    for (const std::shared_ptr<Slot>& slot : slots_) {
      if (!slot->work || slot->work->test()) continue;
      abort();
      slot->work->wait(deadlines::at_once());
    }
  } catch (const std::exception&) {  // expected: it has failed
  }
}

}  // namespace shoal::parallel
