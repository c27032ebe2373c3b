// Runs the threads of many simulated processes on one thread of this process, on virtual time.
//
// A simulated thread is a fiber. It runs until it waits (a lock, a sleep, a socket), and then a
// seed decides which fiber is next. When all wait, the clock jumps to the next event. The same seed
// therefore gives the same run, whatever the machine does.
//
// threads_calls.cc, socket_calls.cc and place_calls.cc bring the system calls of fibers here. Other
// threads of this process do not notice the simulation.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include <boost/context/fiber.hpp>

namespace shoal::simulation {

using Time = std::int64_t;  // nanoseconds
inline constexpr Time kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
inline constexpr Time kSecond = 1000 * kMillisecond, kNever = std::numeric_limits<Time>::max();

struct Fiber;

struct Process {
  int id = 0;
  int host = 0;
  bool stopped = false, ended = false;
  std::vector<Fiber*> fibers, held;  // held: ready, but the process is stopped
  std::vector<Fiber*> watchers;      // fibers that wait for sockets, or nap
};

// What the C++ runtime keeps for each thread about exceptions in flight (__cxa_eh_globals).
struct Exceptions {
  void* caught = nullptr;
  unsigned int uncaught = 0;
};

struct Fiber {
  enum class State : std::uint8_t { ready, waiting, ended };
  Process* process = nullptr;
  int id = 0;
  State state = State::ready;
  std::function<void()> body;
  boost::context::fiber context;
  std::uint64_t waits = 0;  // counts its waits: a timer of an earlier one has no effect
  bool expired = false;     // the last wait ended at its time limit
  Time earliest = 0;        // a nap does not end before
  Time stretch = 0;         // how long its next nap may last
  int error = 0;            // errno
  Exceptions exceptions;
  Fiber* joined_by = nullptr;
  void* result = nullptr;
};

class Scheduler {
 public:
  explicit Scheduler(std::uint64_t seed);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  Time now() const { return now_; }
  // A thread that reads the clock sees it move, or a loop that only reads it would never end.
  Time read_clock() { return now_ += kClockRead; }
  // Between 0 and `below` - 1.
  std::uint64_t random(std::uint64_t below) { return below > 1 ? random_() % below : 0; }
  double chance() { return static_cast<double>(random_() >> 11U) * 0x1p-53; }

  Process& add_process(int host);
  Fiber& add_fiber(Process& process, std::function<void()> body);
  // Calls `event` at that time, on no fiber.
  void at(Time time, std::function<void()> event);
  void after(Time delay, std::function<void()> event) { at(now_ + delay, std::move(event)); }

  enum class Ending : std::uint8_t { done, out_of_time, stuck, out_of_steps };
  // Runs until `done`, until `limit`, until nothing can ever happen, or for `steps` turns.
  Ending run(const std::function<bool()>& done, Time limit, std::uint64_t steps);
  std::uint64_t steps() const { return steps_; }
  // Depends on every turn and event so far, and on what note() added.
  std::uint64_t hash() const { return hash_; }
  void note(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3U; }

  // Call from an event, not from a fiber.
  void stop(Process& process);
  void resume(Process& process);
  void end(Process& process);  // at once, as SIGKILL

  // Call from the running fiber. Each returns false if the time limit ended the wait.
  bool wait(Time limit);
  bool wait_for_activity(Time limit);
  // Sleeps for `duration`. A nap that follows others in which nothing happened to the process lasts
  // longer, as an operating system may let it. A loop of short naps then costs few turns.
  void nap(Time duration);
  void join(Fiber& other);

  void make_ready(Fiber& fiber);
  // A socket of the process changed: ends the waits for activity and the naps.
  void activity(Process& process);

 private:
  static constexpr Time kClockRead = 20;
  struct Event {
    Time time;
    std::uint64_t order;
    Fiber* fiber;  // wakes it from wait number `wait`; null: calls `call`
    std::uint64_t wait;
    std::function<void()> call;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  void push(Time time, Fiber* fiber, std::function<void()> call = {});
  void happen(Event event);
  void turn(Fiber& fiber);
  void leave_fiber();

  std::mt19937_64 random_;
  Time now_ = 1000 * kSecond;
  std::uint64_t steps_ = 0, order_ = 0, hash_ = 0xcbf29ce484222325U;
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> ready_;
  boost::context::fiber main_;
};

// The fiber that runs on this thread, and its scheduler; null on all other threads.
Fiber* running();
Scheduler& scheduler();

}  // namespace shoal::simulation
