// Runs the operations of all groups of one process over one Endpoint.
//
// Operations of a channel (the collectives of a group, or the messages of one rank to another)
// start in the order of submission; several are in flight at once. Whoever submits, tests or waits
// drives all of them; the progress thread takes over when something is in flight and nobody has
// driven it for a moment, in bounded slices, and sleeps in the Endpoint (decision 3). Where
// progress is manual it also looks in every few milliseconds when nothing is in flight: other
// ranks' messages may wait for this rank's transport.
//
// A failure ends the engine, and so every group on it: the Endpoint is closed, so that no buffer
// is touched any more, the other ranks are told why, and every wait and later call throws it.
//
// Lock order: this engine, then whatever a Task drives (a node's engine), never the other way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "shoal/collectives/backend/net/blame.h"
#include "shoal/collectives/backend/net/execution.h"
#include "shoal/collectives/backend/net/patience.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/collectives/transport/control_links.h"
#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives::net {

// What somebody may wait for.
class InFlight {
 public:
  virtual ~InFlight() = default;
  bool done() const { return done_.load(); }
  virtual std::string name() const = 0;  // "all_reduce of 8 f32, sum (#3)"
  // Under the engine's lock, when the deadline has passed: what it waits for, and for whom (ranks
  // of the endpoint).
  virtual std::string missing(std::vector<int>& peers) const = 0;

  // How the group's ranks know it, set before it is submitted.
  transport::OperationKey key;
  Signature signature;
  std::uint32_t number = 0;                // in its channel; wraps
  std::shared_ptr<FlightRecorder> flight;  // where it is written down, or null

 protected:
  void set_done() { done_.store(true); }
  virtual void note_submitted() { flight->submitted(number, signature); }
  virtual void note_finished() { flight->finished(number); }

 private:
  friend class NetEngine;
  std::optional<Clock::time_point> first_test_;  // that found it unfinished
  std::atomic<bool> done_{false};
};

// Something that advances by other means than a program, driven with the engine's operations.
class Task : public InFlight {
 public:
  // With the engine's lock held; true when something moved. Calls set_done() at the end.
  virtual bool advance(bool by_progress_thread) = 0;
  // The engine failed: nothing may touch a buffer any more, here or through other ranks.
  virtual void cancel(std::string_view reason) = 0;
  // It waits for something whose arrival does not wake the Endpoint.
  virtual bool must_poll() const = 0;
  // It waits for ranks of this host alone: sleeps until one of them has brought it on, at most so
  // long, and says true.
  virtual bool doze(int milliseconds) = 0;
};

struct NetOperation final : InFlight {
  Call call;
  std::shared_ptr<const CompiledProgram> program;
  std::shared_ptr<const std::vector<int>> members;
  std::int64_t bytes = 0;                // of the larger buffer
  bool internal = false;                 // nobody asked for it: it bounds how far ranks are apart
  std::unique_ptr<Execution> execution;  // while it runs

  std::string name() const override;
  std::string missing(std::vector<int>& peers) const override;
  void finish() { set_done(); }

 protected:
  void note_submitted() override;
  void note_finished() override;

 private:
  std::uint64_t ticket_ = 0;  // of a message in `flight`
};

// Operations that start in order.
struct Channel {
  explicit Channel(std::uint32_t how_far) : reach(how_far) {}
  // How far a rank may be ahead of its oldest unfinished operation. Every `reach` operations one
  // needs all ranks (or the receiver), so no rank buries another one in messages.
  const std::uint32_t reach;
  std::atomic<std::int64_t> completed{0}, by_progress_thread{0};
  // The engine's, with its lock:
  std::deque<std::shared_ptr<NetOperation>> waiting, running;
  std::int64_t bytes_running = 0;
  bool active = false;
};

class NetEngine : public std::enable_shared_from_this<NetEngine> {
 public:
  struct Options {
    double deadline_seconds = deadlines::seconds();
    int ranks_on_host = 1;           // how long a waiter may look before it sleeps
    std::vector<std::string> hosts;  // by rank of the endpoint, for messages; empty: one host
  };
  // `control` may be null: then nobody is told of failures, and none is heard of.
  NetEngine(std::unique_ptr<transport::Endpoint> endpoint,
            std::unique_ptr<transport::ControlLinks> control, const Options& options);
  ~NetEngine();

  int rank() const { return rank_; }
  double deadline_seconds() const { return options_.deadline_seconds; }

  // Everything but the operation's execution is set. Does not block.
  void submit(const std::shared_ptr<Channel>& channel, std::shared_ptr<NetOperation> operation);
  // Its key is watched: a rank that sends a message of another operation under it is found out.
  void submit(std::shared_ptr<Task> task);
  // The same, from inside Task::advance().
  void submit_locked(const std::shared_ptr<Channel>& channel,
                     std::shared_ptr<NetOperation> operation);

  bool test(InFlight& what);
  void wait(InFlight& what, Deadline deadline);
  void abort(std::string_view reason);
  // Communicators that use this engine. The last one to leave lets the other ranks finish, then
  // ends the thread and the Endpoint; what is in flight fails with `aborted`.
  void join() { users_.fetch_add(1); }
  void leave();

  // Writes `recorder` down when the engine fails. Its operations are recorded with the lock held.
  void record(const std::shared_ptr<FlightRecorder>& recorder);

  // Keeps the range registered until the returned object ends, or the engine does.
  // `device`: of the device's memory; throws where the Endpoint refuses it.
  std::unique_ptr<Registration> register_memory(void* data, std::int64_t bytes,
                                                bool device = false);
  // The same by number, with the engine's lock held: from inside Task::advance().
  std::uint64_t hold_region(void* data, std::int64_t bytes, bool device = false);
  // Whether the lock is held or not: it is given up before anything else is submitted, so that no
  // message meets new memory under an old registration.
  void retire_region(std::uint64_t region) noexcept;
  // At once, without the lock: before its memory is freed.
  void drop_region(std::uint64_t region);
  std::string endpoint_name() const { return endpoint_name_; }
  const std::string& device_memory_problem() const { return device_memory_problem_; }
  std::int64_t eager_bytes() const { return eager_bytes_; }
  transport::EndpointStatistics endpoint_statistics() const;

  // Group ids are given out in order, each once on every process: the ranks that form a group
  // agree on the largest next_group() of theirs and take theirs from there.
  std::uint32_t next_group() const;
  void set_next_group(std::uint32_t next);

 private:
  class Awaiting;
  // All below: with mutex_ held.
  bool advance();
  bool run_channel(Channel& channel, std::int64_t& budget);
  bool start_waiting(Channel& channel);
  void note_call(InFlight& what);
  void start(Channel& channel, const std::shared_ptr<NetOperation>& operation);
  void finish(Channel& channel, NetOperation& operation);
  void throw_if_failed() const;
  [[noreturn]] void fail(Error error);
  void close(const Error& error);
  void write_down(const Error& error);
  // Fails on news from the control links. Looks at most every few milliseconds.
  void check_news();
  template <typename Name>
  void fail_on_news(Name&& name);
  void drop_retired();
  Error with_cause(const Error& error);
  Error timeout_error(const InFlight& what, double waited);
  Error with_silent_ranks(const Error& timeout);
  // `sleeps`: so many in a row moved nothing.
  void sleep(std::uint32_t sleeps);

  void stop();
  void linger();
  void wake_thread();
  void progress_loop();
  void drive_in_background();
  bool still_sending();  // and pushes, polls; the progress thread's
  std::unique_lock<std::mutex> enter();

  const Options options_;
  int rank_, size_;
  const RankNames names_;
  std::string endpoint_name_;
  const std::string device_memory_problem_;  // the Endpoint's
  const std::int64_t eager_bytes_;
  const bool polled_;  // Endpoint::must_be_polled()
  std::unique_ptr<MemoryResource> host_;
  std::unique_ptr<MemoryResource> scratch_;  // registered
  std::unique_ptr<MemoryResource> pool_;     // over it
  std::unique_ptr<kernels::ReductionKernels> reduction_;
  std::unique_ptr<transport::ControlLinks> control_;

  mutable std::mutex mutex_;
  std::atomic<int> entering_{0};  // threads that want mutex_ while somebody waits with it
  std::vector<std::shared_ptr<Channel>> active_;  // channels with something in flight
  std::vector<std::shared_ptr<Task>> tasks_;
  std::vector<std::unique_ptr<Execution>> idle_;
  std::unique_ptr<transport::Endpoint> endpoint_;  // null after a failure
  std::map<std::uint64_t, std::unique_ptr<transport::MemoryRegion>> regions_;  // of endpoint_
  std::uint64_t next_region_ = 0;
  std::mutex retired_mutex_;  // innermost
  std::vector<std::uint64_t> retired_;
  std::atomic<bool> any_retired_{false};
  std::optional<Error> failure_;
  Blame blame_;  // for failure_
  std::vector<std::weak_ptr<FlightRecorder>> recorders_;
  transport::EndpointStatistics last_statistics_;
  std::uint32_t next_group_ = 1;
  Clock::time_point next_check_{};
  Clock::time_point peer_left_since_{};
  bool background_ = false;
  Patience patience_;
  const InFlight* awaited_ = nullptr;  // whose wait() has the lock

  std::atomic<int> users_{0}, in_flight_{0}, waiters_{0};
  std::atomic<Clock::rep> last_driven_{0};
  std::atomic<bool> stopping_{false}, parked_{false};
  std::mutex park_mutex_;  // never taken together with mutex_
  std::condition_variable unpark_;
  std::thread thread_;
};

}  // namespace shoal::collectives::net
