#include "shoal/collectives/backend/native/queued_operation.h"

#include "shoal/collectives/backend/native/engine.h"

namespace shoal::collectives::native {
namespace {

// take() skips at most this many operations whose Works callers still hold, then makes a new one.
constexpr int kPassedOver = 4;

}  // namespace

bool NativeWork::test() {
  return operation_.done.load(std::memory_order_acquire) || engine_.test(operation_);
}
void NativeWork::wait(Deadline deadline) {
  if (!operation_.done.load(std::memory_order_acquire)) engine_.wait(operation_, deadline);
}
void NativeWork::wait() {
  if (!operation_.done.load(std::memory_order_acquire)) engine_.wait(operation_);
}
void NativeWork::doze(int milliseconds) { engine_.doze(milliseconds); }
bool NativeWork::drive(const Deadline& until, const std::atomic<int>& wanted, bool may_spin) {
  return operation_.done.load(std::memory_order_acquire) ||
         engine_.drive(operation_, until, wanted, may_spin);
}
void NativeWork::interrupt() { engine_.interrupt(); }
double NativeWork::default_deadline_seconds() const { return engine_.deadline_seconds(); }

void NativeWork::operator delete(NativeWork* work, std::destroying_delete_t) {
  work->engine_.release(work->operation_);
}

QueuedOperation& OperationPool::find_or_make() {
  for (int i = 0; i < kPassedOver && !spare_.empty() && !is_free(spare_.front()); ++i) {
    QueuedOperation& kept = spare_.front();
    spare_.pop_front();
    spare_.push_back(kept);
  }
  if (spare_.empty() || !is_free(spare_.front())) {
    all_.push_back(std::make_unique<QueuedOperation>(engine_));
    spare_.push_front(*all_.back());
  }
  return spare_.front();
}

}  // namespace shoal::collectives::native
