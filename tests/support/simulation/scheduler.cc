#include "support/simulation/scheduler.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include <cxxabi.h>
#include <sys/mman.h>

namespace shoal::simulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10, kGuardBytes = 4096;
constexpr Time kLongestNap = 8 * kMillisecond;  // that other naps may grow to
constexpr Time kShortTurn = 200;                // a turn costs this much time, or a few times it

thread_local Fiber* current = nullptr;
thread_local Scheduler* current_scheduler = nullptr;

// Stacks are used again, also those of fibers that were ended in the middle of a call.
class Stacks {
 public:
  void* take() {
    if (free_.empty()) {
      void* memory = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED || ::mprotect(memory, kGuardBytes, PROT_NONE) != 0) std::abort();
      return memory;
    }
    void* memory = free_.back();
    free_.pop_back();
    return memory;
  }
  void give_back(void* memory) { free_.push_back(memory); }

 private:
  std::vector<void*> free_;
};

Stacks& stacks() {
  static Stacks all;
  return all;
}

struct StackOfFiber {
  void** place;
  boost::context::stack_context allocate() {
    *place = stacks().take();
    boost::context::stack_context made;
    made.size = kStackBytes;
    made.sp = static_cast<char*>(*place) + kStackBytes;
    return made;
  }
  void deallocate(boost::context::stack_context&) {
    stacks().give_back(std::exchange(*place, nullptr));
  }
};

void exchange_exceptions(Exceptions& kept) {
  std::swap(kept, *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals()));
}

}  // namespace

Fiber* running() { return current; }
Scheduler& scheduler() { return *current_scheduler; }

// A fiber with the stack that it runs on.
struct OwnFiber : Fiber {
  void* stack = nullptr;
};

Scheduler::Scheduler(std::uint64_t seed) : random_(seed) { current_scheduler = this; }

Scheduler::~Scheduler() {
  for (const auto& process : processes_) end(*process);
  current_scheduler = nullptr;
}

Process& Scheduler::add_process(int host) {
  auto process = std::make_unique<Process>();
  process->id = static_cast<int>(processes_.size());
  process->host = host;
  processes_.push_back(std::move(process));
  return *processes_.back();
}

Fiber& Scheduler::add_fiber(Process& process, std::function<void()> body) {
  auto made = std::make_unique<OwnFiber>();
  OwnFiber& fiber = *made;
  fiber.process = &process;
  fiber.id = static_cast<int>(fibers_.size());
  fiber.body = std::move(body);
  // An exception that leaves a thread ends its process, and here the whole simulation.
  const auto run = [this, &fiber](boost::context::fiber&& main) noexcept {
    main_ = std::move(main);
    fiber.body();
    fiber.body = nullptr;
    fiber.state = Fiber::State::ended;
    if (fiber.joined_by != nullptr) make_ready(*fiber.joined_by);
    return std::move(main_);
  };
  fiber.context = boost::context::fiber(std::allocator_arg, StackOfFiber{&fiber.stack}, run);
  fiber.state = Fiber::State::waiting;
  process.fibers.push_back(&fiber);
  fibers_.push_back(std::move(made));
  make_ready(fiber);
  return fiber;
}

void Scheduler::push(Time time, Fiber* fiber, std::function<void()> call) {
  events_.push({time, order_++, fiber, fiber != nullptr ? fiber->waits : 0, std::move(call)});
}

void Scheduler::at(Time time, std::function<void()> event) {
  push(std::max(time, now_), nullptr, std::move(event));
}

Scheduler::Ending Scheduler::run(const std::function<bool()>& done, Time limit,
                                 std::uint64_t steps) {
  for (const std::uint64_t last = steps_ + steps; !done();) {
    if (now_ > limit) return Ending::out_of_time;
    if (++steps_ > last) return Ending::out_of_steps;
    if (!events_.empty() && (ready_.empty() || events_.top().time <= now_)) {
      Event event = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      happen(std::move(event));
      continue;
    }
    if (ready_.empty()) return Ending::stuck;
    std::swap(ready_[random(ready_.size())], ready_.back());
    Fiber& next = *ready_.back();
    ready_.pop_back();
    turn(next);
  }
  return Ending::done;
}

void Scheduler::happen(Event event) {
  now_ = std::max(now_, event.time);
  if (event.fiber == nullptr) {
    note(static_cast<std::uint64_t>(now_));
    event.call();
  } else if (event.fiber->state == Fiber::State::waiting && event.fiber->waits == event.wait) {
    event.fiber->expired = true;
    make_ready(*event.fiber);
  }
}

void Scheduler::turn(Fiber& fiber) {
  now_ += kShortTurn * static_cast<Time>(1 + random(4));
  note(static_cast<std::uint64_t>(now_) << 16U ^ static_cast<std::uint64_t>(fiber.id));
  current = &fiber;
  exchange_exceptions(fiber.exceptions);
  std::swap(errno, fiber.error);
  fiber.context = std::move(fiber.context).resume();
  std::swap(errno, fiber.error);
  exchange_exceptions(fiber.exceptions);
  current = nullptr;
}

// Not inlined: a fiber's code must not keep the addresses of this thread's variables.
[[gnu::noinline]] void Scheduler::leave_fiber() { main_ = std::move(main_).resume(); }

void Scheduler::make_ready(Fiber& fiber) {
  if (fiber.state != Fiber::State::waiting) return;
  fiber.state = Fiber::State::ready;
  (fiber.process->stopped ? fiber.process->held : ready_).push_back(&fiber);
}

bool Scheduler::wait(Time limit) {
  Fiber& self = *current;
  self.state = Fiber::State::waiting;
  self.expired = false;
  ++self.waits;
  if (limit != kNever) push(limit, &self);
  leave_fiber();
  return !self.expired;
}

bool Scheduler::wait_for_activity(Time limit) {
  Fiber& self = *current;
  self.earliest = 0;
  self.process->watchers.push_back(&self);
  const bool woken = wait(limit);
  std::erase(self.process->watchers, &self);
  return woken;
}

void Scheduler::nap(Time duration) {
  Fiber& self = *current;
  if (duration > kLongestNap) return (void)wait(now_ + duration);
  self.earliest = now_ + duration;
  self.stretch = std::clamp(2 * self.stretch, duration, kLongestNap);
  self.process->watchers.push_back(&self);
  wait(now_ + self.stretch);
  std::erase(self.process->watchers, &self);
}

void Scheduler::activity(Process& process) {
  for (Fiber* fiber : process.watchers) {
    fiber->stretch = 0;
    if (fiber->earliest > now_)
      push(fiber->earliest, fiber);
    else
      make_ready(*fiber);
  }
}

void Scheduler::join(Fiber& other) {
  while (other.state != Fiber::State::ended) {
    other.joined_by = current;
    wait(kNever);
  }
}

void Scheduler::stop(Process& process) {
  process.stopped = true;
  for (Fiber* fiber : process.fibers)
    if (std::erase(ready_, fiber) > 0) process.held.push_back(fiber);
}

void Scheduler::resume(Process& process) {
  process.stopped = false;
  ready_.insert(ready_.end(), process.held.begin(), process.held.end());
  process.held.clear();
}

void Scheduler::end(Process& process) {
  process.ended = true;
  process.held.clear();
  process.watchers.clear();
  for (Fiber* fiber : process.fibers) {
    std::erase(ready_, fiber);
    fiber->state = Fiber::State::ended;
    // Not destroyed, which would unwind the stack: a process that is killed runs no destructor.
    if (fiber->context) (void)new boost::context::fiber(std::move(fiber->context));
    auto* own = static_cast<OwnFiber*>(fiber);
    if (own->stack != nullptr) stacks().give_back(std::exchange(own->stack, nullptr));
  }
}

}  // namespace shoal::simulation
