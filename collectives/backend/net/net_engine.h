// Runs the operations of all groups of one process over one Endpoint.
//
// Operations of a channel (the collectives of a group, or the messages of one rank to another)
// start in the order of submission; several are in flight at once. Any thread that submits, tests
// or waits drives all of them.
//
// The progress thread (progress_thread.h) sleeps in the Endpoint (decision 3). If the Endpoint must
// be polled, the thread also polls every few milliseconds while idle, because other ranks' messages
// may depend on this rank's transport.
//
// A failure ends the engine and every group on it. The engine closes the Endpoint, so that no
// buffer is touched any more, and tells the other ranks why. Every wait and later call throws the
// error.
//
// Lock order: this engine, then the engine that a Task drives (a node's); never the reverse.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "shoal/collectives/backend/engine_base.h"
#include "shoal/collectives/backend/net/blame.h"
#include "shoal/collectives/backend/net/execution.h"
#include "shoal/collectives/backend/net/patience.h"
#include "shoal/collectives/communicator.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/collectives/transport/control_links.h"
#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives::net {

// The group of all ranks has the first id given out.
inline constexpr std::uint32_t kWorldGroup = 1;

// An operation that a caller can wait for.
class InFlight {
 public:
  virtual ~InFlight() = default;
  bool done() const { return done_.load(); }
  virtual std::string name() const = 0;  // "all_reduce of 8 f32, sum (#3)"
  // Called with the engine's lock held, after the deadline. Returns what the operation waits for
  // and adds the awaited ranks (of the endpoint) to `peers`.
  virtual std::string missing(std::vector<int>& peers) const = 0;

  // Identifies the operation among the group's ranks; set before submission.
  transport::OperationKey key;
  Signature signature;
  std::uint32_t number = 0;                // position in its channel; wraps
  std::shared_ptr<FlightRecorder> flight;  // records it; may be null

 protected:
  void set_done() { done_.store(true); }
  virtual void note_submitted() { flight->submitted(number, signature); }
  virtual void note_finished() { flight->finished(number); }

 private:
  friend class NetEngine;
  std::optional<Clock::time_point> first_test_;  // first test() that found it unfinished
  std::atomic<bool> done_{false};
};

// An operation that advances by other means than a program. The engine drives it with its own
// operations.
class Task : public InFlight {
 public:
  // Called with the engine's lock held. Returns true if there was progress. Calls set_done() at the
  // end.
  virtual bool advance(bool by_progress_thread) = 0;
  // Called after the engine has failed. From then on neither this rank nor another may touch a
  // buffer.
  virtual void cancel(std::string_view reason) = 0;
  // Whether the task waits for an event that does not wake the Endpoint.
  virtual bool must_poll() const = 0;
  // If the task waits only for ranks of this host: sleeps until one of them has made progress, but
  // at most this long, and returns true.
  virtual bool doze(int milliseconds) = 0;
};

struct NetOperation final : InFlight {
  Call call;
  std::shared_ptr<const CompiledProgram> program;
  std::shared_ptr<const std::vector<int>> members;
  std::int64_t bytes = 0;  // of the larger buffer
  bool internal = false;   // not a user's call: keeps ranks from drifting too far apart
  std::unique_ptr<Execution> execution;  // while it runs

  std::string name() const override;
  std::string missing(std::vector<int>& peers) const override;
  void finish() { set_done(); }

 protected:
  void note_submitted() override;
  void note_finished() override;

 private:
  std::uint64_t ticket_ = 0;  // messages: in `flight`
};

// Operations that start in order of submission.
struct Channel {
  explicit Channel(std::uint32_t how_far) : reach(how_far) {}
  // How far a rank may run ahead of its oldest unfinished operation. One in every `reach`
  // operations needs all ranks (or the receiver), so that no rank queues up messages at another
  // without limit.
  const std::uint32_t reach;
  std::atomic<std::int64_t> completed{0}, by_progress_thread{0};
  // Used by the engine with its lock held:
  std::deque<std::shared_ptr<NetOperation>> waiting, running;
  std::int64_t bytes_running = 0;
  bool active = false;
};

class NetEngine final : private EngineBase, public std::enable_shared_from_this<NetEngine> {
 public:
  struct Options {
    double deadline_seconds = deadlines::seconds();
    int ranks_on_host = 1;           // decides how long a waiter polls before it sleeps
    std::vector<std::string> hosts;  // by the endpoint's rank, for messages; empty: one host
  };
  // `control` may be null: failures are then neither sent to other ranks nor received from them.
  NetEngine(std::unique_ptr<transport::Endpoint> endpoint,
            std::unique_ptr<transport::ControlLinks> control, const Options& options);
  ~NetEngine() override;

  int rank() const { return rank_; }
  using EngineBase::deadline_seconds;
  using EngineBase::set_deadline_seconds;

  // Everything but the operation's `execution` must be set. Does not block.
  void submit(const std::shared_ptr<Channel>& channel, std::shared_ptr<NetOperation> operation);
  // If a rank sends a message of another operation under the task's key, the engine fails.
  void submit(std::shared_ptr<Task> task);
  // Like submit() of an operation, but called from inside Task::advance().
  void submit_locked(const std::shared_ptr<Channel>& channel,
                     std::shared_ptr<NetOperation> operation);

  bool test(InFlight& what);
  void wait(InFlight& what, Deadline deadline);
  void abort(std::string_view reason);
  // Count the Communicators that use this engine. The last leave() lets the other ranks finish,
  // then ends the thread and the Endpoint. Operations still in flight fail with `aborted`.
  void join() { users_.fetch_add(1); }
  void leave();

  // Makes the engine write `recorder` to its file on failure. The engine calls the recorder with
  // the lock held.
  void record(const std::shared_ptr<FlightRecorder>& recorder);

  // Keeps the range registered until the returned object or the engine ends. `device`: the range is
  // device memory. Throws if the Endpoint refuses it.
  std::unique_ptr<Registration> register_memory(void* data, std::int64_t bytes,
                                                bool device = false);
  // Registers a region and returns its number. Call with the engine's lock held, from inside
  // Task::advance().
  std::uint64_t hold_region(void* data, std::int64_t bytes, bool device = false);
  // Call with or without the lock. The engine drops the region before it submits anything else, so
  // that no message uses new memory under an old registration.
  void retire_region(std::uint64_t region) noexcept;
  // Drops the region at once. Call without the lock, before the memory is freed.
  void drop_region(std::uint64_t region);
  std::string endpoint_name() const { return endpoint_name_; }
  const std::string& device_memory_problem() const { return device_memory_problem_; }
  std::int64_t eager_bytes() const { return eager_bytes_; }
  transport::EndpointStatistics endpoint_statistics() const;

  // Group ids are given out in order, each once per process. Ranks that form a group agree on the
  // largest of their next_group() values and take the group's ids from there.
  std::uint32_t next_group() const;
  void set_next_group(std::uint32_t next);

 private:
  class Awaiting;
  // Call all functions below with mutex_ held.
  bool advance();
  bool run_channel(Channel& channel, std::int64_t& budget);
  bool start_waiting(Channel& channel);
  void note_call(InFlight& what);
  void start(Channel& channel, const std::shared_ptr<NetOperation>& operation);
  void finish(Channel& channel, NetOperation& operation);
  [[noreturn]] void fail(const Error& error) override;
  void close(const Error& error);
  void write_down(const Error& error);
  // Fails if the control links have news. Looks at most once every few milliseconds.
  void check_news();
  template <typename Name>
  void fail_on_news(Name&& name);
  void drop_retired();
  Error with_cause(const Error& error) override;
  Error timeout_error(const InFlight& what, double waited);
  Error with_silent_ranks(const Error& timeout);
  Error with_late_ranks(const InFlight& what, const Error& timeout);
  // `sleeps`: number of consecutive sleeps without progress.
  void sleep(std::uint32_t sleeps);

  void stop();
  void linger();
  bool drive() override;
  bool idle() override;
  void if_unlocked(const std::function<void()>& body) override;
  // Calls `body` on the progress thread with the lock held, and keeps its Error for later calls.
  template <typename Body>
  void in_background(Body&& body);
  std::unique_lock<std::mutex> enter();

  const Options options_;
  int rank_, size_;
  const RankNames names_;
  std::string endpoint_name_;
  const std::string device_memory_problem_;  // as reported by the Endpoint
  const std::int64_t eager_bytes_;
  const bool polled_;  // Endpoint::must_be_polled()
  std::unique_ptr<MemoryResource> host_;
  std::unique_ptr<MemoryResource> scratch_;  // registered
  std::unique_ptr<MemoryResource> pool_;     // allocates from scratch_
  std::unique_ptr<kernels::ReductionKernels> reduction_;
  std::unique_ptr<transport::ControlLinks> control_;

  mutable std::mutex mutex_;
  std::atomic<int> entering_{0};  // threads that want mutex_ while a waiter holds it
  std::vector<std::shared_ptr<Channel>> active_;  // channels with something in flight
  std::vector<std::shared_ptr<Task>> tasks_;
  std::vector<std::unique_ptr<Execution>> idle_;
  std::unique_ptr<transport::Endpoint> endpoint_;  // null after a failure
  std::map<std::uint64_t, std::unique_ptr<transport::MemoryRegion>> regions_;  // in endpoint_
  std::uint64_t next_region_ = 0;
  std::mutex retired_mutex_;  // innermost
  std::vector<std::uint64_t> retired_;
  std::atomic<bool> any_retired_{false};
  Blame blame_;  // the ranks that failure_ names
  std::vector<std::weak_ptr<FlightRecorder>> recorders_;
  transport::EndpointStatistics last_statistics_;
  std::uint32_t next_group_ = 1;
  Clock::time_point next_check_{};
  Clock::time_point peer_left_since_{};
  Patience patience_;
  const InFlight* awaited_ = nullptr;  // the operation that the thread holding the lock waits for

  std::atomic<int> users_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace shoal::collectives::net
