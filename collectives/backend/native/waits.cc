// How threads wait for an operation and drive it meanwhile.
#include <algorithm>

#include "shoal/collectives/backend/native/engine.h"

namespace shoal::collectives::native {
namespace {

constexpr int kYieldsBeforeDozing = 8;  // the awaited rank may run next on this core

int milliseconds_until(const Deadline& deadline, int longest) {
  return static_cast<int>(
      std::clamp(deadline.seconds_left() * 1000, 1.0, static_cast<double>(longest)));
}

// Lets the progress thread drive again at the end of a wait. Destroy it with the lock held.
struct Leave {
  ProgressThread& progress;
  ~Leave() {
    progress.driven();
    progress.waiters.store(0, std::memory_order_relaxed);
  }
};

}  // namespace

template <typename Stop, typename Look>
bool Engine::progress_until_done(QueuedOperation& operation, transport::Backoff backoff,
                                 Stop&& stop, Look&& look) {
  for (std::uint32_t round = 1; !operation.done.load(std::memory_order_relaxed); ++round) {
    throw_if_failed();
    const bool moved = advance() != Progress::none;
    if (moved) backoff.reset();
    int limit = 0;
    // Checks deadlines and aborts even while there is progress, but only now and then: reading the
    // clock costs as much as many polls of a flag.
    if (backoff.sleeping() || round % 64 == 0) {
      if (operation.done.load(std::memory_order_relaxed)) break;
      check_group(operation);
      limit = look();
    }
    if (stop()) return operation.done.load(std::memory_order_relaxed);
    if (moved) continue;
    backoff.pause(group_->own_page(), limit, [&] { return stop() || may_progress(); });
  }
  return true;
}

void Engine::wait(QueuedOperation& operation, std::optional<Deadline> deadline) {
  progress_.waiters.store(1, std::memory_order_relaxed);
  const std::lock_guard lock(lock_);
  const Leave leave{progress_};
  if (spins_ > 0 && exchange_soon(operation)) return;
  std::optional<Clock::time_point> start;
  const auto look = [&] {
    const auto now = Clock::now();
    if (!start) start = now;
    if (!deadline) deadline = Deadline::in_seconds(deadline_seconds_);
    if (now >= deadline->time())
      fail(timeout_error(operation, std::chrono::duration<double>(now - *start).count()));
    return milliseconds_until(*deadline, kSleepMilliseconds);
  };
  progress_until_done(
      operation, transport::Backoff(spins_, group_->sleepers_fence()), [] { return false; }, look);
}

bool Engine::drive(QueuedOperation& operation, const Deadline& until,
                   const std::atomic<int>& wanted, bool may_spin) {
  progress_.waiters.store(1, std::memory_order_relaxed);
  const std::lock_guard lock(lock_);
  const Leave leave{progress_};
  if (may_spin && spins_ > 0 && exchange_soon(operation)) return true;
  bool passed = false;
  const auto look = [&] {
    const double waited = seconds_since_first(operation.first_test);
    if (waited > deadline_seconds_) fail(timeout_error(operation, waited));
    passed = until.passed();
    return milliseconds_until(until, kSleepMilliseconds);
  };
  const auto stop = [&] { return passed || wanted.load() > 0; };
  transport::Backoff backoff(may_spin ? spins_ : 0, group_->sleepers_fence(), !may_spin);
  return progress_until_done(operation, backoff, stop, look);
}

void Engine::interrupt() { transport::wake_always(group_->own_page()); }

void Engine::doze(int milliseconds) {
  const std::lock_guard lock(lock_);
  for (int i = 0; i < kYieldsBeforeDozing; ++i) {
    std::this_thread::yield();
    if (may_progress()) return;
  }
  transport::Backoff backoff(0, group_->sleepers_fence(), true);
  backoff.pause(group_->own_page(), milliseconds, [this] { return may_progress(); });
}

}  // namespace shoal::collectives::native
