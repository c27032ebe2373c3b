// Clocks, threads and locks of fibers. Definitions in the executable take precedence over the C
// library's, for shared libraries too. Threads that are no fibers get the C library's.
#include <algorithm>
#include <cerrno>
#include <unordered_map>
#include <vector>

#include "support/simulation/real_call.h"
#include "support/simulation/scheduler.h"
#include <pthread.h>
#include <sched.h>
#include <time.h>

namespace shoal::simulation {
namespace {

constexpr Time kYield = 2 * kMicrosecond;
constexpr Time kCalendar = 1'700'000'000 * kSecond;  // CLOCK_REALTIME minus CLOCK_MONOTONIC
constexpr Time kShortWait = 10 * kMillisecond;       // shorter waits may be stretched like naps

Time time_of(const timespec& time) { return Time{time.tv_sec} * kSecond + time.tv_nsec; }
timespec timespec_of(Time time) {
  return {static_cast<time_t>(time / kSecond), static_cast<long>(time % kSecond)};
}

// A lock that fibers use keeps its state where the C library would. An unlocked one is therefore
// unlocked for both. A fiber's number is 1 or more here.
struct Lock {
  int locked;
  unsigned depth;
  int owner;
  unsigned waiting;
  int kind;
};
static_assert(sizeof(Lock) <= sizeof(pthread_mutex_t));

Lock& lock_of(pthread_mutex_t* mutex) { return *reinterpret_cast<Lock*>(mutex); }

using Queues = std::unordered_map<const void*, std::vector<Fiber*>>;
thread_local Queues queues;  // of locks and condition variables with waiting fibers

bool take_lock(pthread_mutex_t* mutex) {
  Lock& lock = lock_of(mutex);
  const int self = running()->id + 1;
  if (lock.locked == 0) {
    lock.locked = 1;
    lock.owner = self;
    return true;
  }
  if ((lock.kind & 3) != PTHREAD_MUTEX_RECURSIVE || lock.owner != self) return false;
  ++lock.depth;
  return true;
}

void wait_in(const void* queue, Time limit) {
  queues[queue].push_back(running());
  scheduler().wait(limit);
  const auto found = queues.find(queue);
  if (found == queues.end()) return;
  std::erase(found->second, running());
  if (found->second.empty()) queues.erase(found);
}

void wake_one(const void* queue) {
  const auto found = queues.find(queue);
  if (found == queues.end()) return;
  auto& fibers = found->second;
  std::erase_if(fibers, [](const Fiber* fiber) { return fiber->state != Fiber::State::waiting; });
  if (fibers.empty()) return;
  const auto chosen = static_cast<std::ptrdiff_t>(scheduler().random(fibers.size()));
  Fiber* fiber = fibers[static_cast<std::size_t>(chosen)];
  fibers.erase(fibers.begin() + chosen);
  scheduler().make_ready(*fiber);
}

void wake_all(const void* queue) {
  const auto found = queues.find(queue);
  if (found == queues.end()) return;
  const std::vector<Fiber*> fibers = std::move(found->second);
  queues.erase(found);
  for (Fiber* fiber : fibers) scheduler().make_ready(*fiber);
}

int lock(pthread_mutex_t* mutex) {
  while (!take_lock(mutex)) wait_in(mutex, kNever);
  return 0;
}

int unlock(pthread_mutex_t* mutex) {
  Lock& lock = lock_of(mutex);
  if (lock.depth > 0) {
    --lock.depth;
    return 0;
  }
  lock.locked = lock.owner = 0;
  wake_one(mutex);
  return 0;
}

// Returns 0, also without a signal, or ETIMEDOUT.
int wait_for_signal(pthread_cond_t* condition, pthread_mutex_t* mutex, Time limit) {
  Scheduler& here = scheduler();
  Fiber& self = *running();
  unlock(mutex);
  const Time duration = limit == kNever ? kNever : std::max<Time>(limit - here.now(), 0);
  Time until = limit;
  if (duration <= kShortWait) {
    self.earliest = limit;
    self.stretch = std::clamp(2 * self.stretch, duration, kShortWait);
    until = here.now() + self.stretch;
    self.process->watchers.push_back(&self);
  }
  wait_in(condition, until);
  const bool expired = self.expired;
  if (duration <= kShortWait) std::erase(self.process->watchers, &self);
  lock(mutex);
  return expired ? ETIMEDOUT : 0;
}

int sleep_until(Time time) {
  Scheduler& here = scheduler();
  if (time > here.now()) here.nap(time - here.now());
  return 0;
}

pthread_t handle_of(Fiber& fiber) { return reinterpret_cast<pthread_t>(&fiber); }
Fiber& fiber_of(pthread_t handle) {
  return *reinterpret_cast<Fiber*>(handle);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

// Forgets the queues of a simulation that has ended.
void forget_queues();
void forget_queues() { queues.clear(); }

}  // namespace shoal::simulation

using namespace shoal::simulation;  // NOLINT(google-build-using-namespace)

extern "C" {

int clock_gettime(clockid_t clock, struct timespec* time) noexcept {
  SHOAL_REAL_CALL(clock_gettime);
  if (!running()) return next(clock, time);
  *time = timespec_of(scheduler().read_clock() + (clock == CLOCK_REALTIME ? kCalendar : 0));
  return 0;
}

int nanosleep(const struct timespec* wanted, struct timespec* left) {
  SHOAL_REAL_CALL(nanosleep);
  if (!running()) return next(wanted, left);
  return sleep_until(scheduler().now() + time_of(*wanted));
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec* wanted,
                    struct timespec* left) {
  SHOAL_REAL_CALL(clock_nanosleep);
  if (!running()) return next(clock, flags, wanted, left);
  if (flags != TIMER_ABSTIME) return sleep_until(scheduler().now() + time_of(*wanted));
  return sleep_until(time_of(*wanted) - (clock == CLOCK_REALTIME ? kCalendar : 0));
}

int sched_yield() noexcept {
  SHOAL_REAL_CALL(sched_yield);
  if (!running()) return next();
  return sleep_until(scheduler().now() + kYield);
}

int pthread_create(pthread_t* made, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  SHOAL_REAL_CALL(pthread_create);
  if (!running()) return next(made, attributes, body, argument);
  Fiber& fiber = scheduler().add_fiber(*running()->process,
                                       [body, argument] { running()->result = body(argument); });
  *made = handle_of(fiber);
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  SHOAL_REAL_CALL(pthread_join);
  if (!running()) return next(thread, result);
  scheduler().join(fiber_of(thread));
  if (result) *result = fiber_of(thread).result;
  return 0;
}

int pthread_detach(pthread_t thread) noexcept {
  SHOAL_REAL_CALL(pthread_detach);
  return running() ? 0 : next(thread);
}

pthread_t pthread_self() noexcept {
  SHOAL_REAL_CALL(pthread_self);
  return running() ? handle_of(*running()) : next();
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  SHOAL_REAL_CALL(pthread_mutex_lock);
  return running() ? lock(mutex) : next(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  SHOAL_REAL_CALL(pthread_mutex_trylock);
  if (!running()) return next(mutex);
  return take_lock(mutex) ? 0 : EBUSY;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  SHOAL_REAL_CALL(pthread_mutex_unlock);
  return running() ? unlock(mutex) : next(mutex);
}

// The older functions of these names have another layout of pthread_cond_t.
constexpr const char* kCondition = "GLIBC_2.3.2";

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto next =
      real_call<decltype(&::pthread_cond_wait)>("pthread_cond_wait", kCondition);
  return running() ? wait_for_signal(condition, mutex, kNever) : next(condition, mutex);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const struct timespec* limit) {
  static const auto next =
      real_call<decltype(&::pthread_cond_timedwait)>("pthread_cond_timedwait", kCondition);
  return running() ? wait_for_signal(condition, mutex, time_of(*limit) - kCalendar)
                   : next(condition, mutex, limit);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* limit) {
  SHOAL_REAL_CALL(pthread_cond_clockwait);
  if (!running()) return next(condition, mutex, clock, limit);
  return wait_for_signal(condition, mutex,
                         time_of(*limit) - (clock == CLOCK_REALTIME ? kCalendar : 0));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  static const auto next =
      real_call<decltype(&::pthread_cond_signal)>("pthread_cond_signal", kCondition);
  if (!running()) return next(condition);
  wake_one(condition);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  static const auto next =
      real_call<decltype(&::pthread_cond_broadcast)>("pthread_cond_broadcast", kCondition);
  if (!running()) return next(condition);
  wake_all(condition);
  return 0;
}

}  // extern "C"
