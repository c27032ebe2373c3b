// The queue of operations of one native Communicator, and who drives it.
//
// Collectives run strictly in the order of submission, one at a time; messages beside them. Whoever
// submits, tests or waits drives the head operation; the progress thread takes over when something
// is in flight and nobody has driven it for a while (naps.h), one step at a time, and sleeps
// instead of spinning (decision 3).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "shoal/collectives/backend/native/naps.h"
#include "shoal/collectives/backend/native/owner_lock.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/native/queued_operation.h"
#include "shoal/collectives/backend/native/repeated_call.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/collectives/transport/doorbell.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {

class Messages;

class Engine {
 public:
  // `first_sequence`: the same on all ranks; tests start just before the wrap.
  Engine(std::shared_ptr<Group> group, PlanChoice choice, double deadline_seconds,
         FlightRecorder flight, std::uint32_t first_sequence = 1);
  ~Engine();
  // What a Communicator does with its engine in the end: stops it; it is deleted now, or with the
  // last Work that somebody still has.
  static void leave(Engine* engine);
  struct Deleter {
    void operator()(Engine* engine) const { leave(engine); }
  };

  // `call` has been checked. `fusion`: what it was fused of, or null.
  WorkPtr submit(Call&& call, std::unique_ptr<Fusion> fusion = nullptr);
  // The short way of a small call that is like the one before it, which makes checks superfluous;
  // null where it is not: submit it.
  WorkPtr repeat(const PlainCall& call);
  bool test(QueuedOperation& operation);
  // Without a deadline: deadline_seconds().
  void wait(QueuedOperation& operation, std::optional<Deadline> deadline = {});
  // Sleeps until the head operation may take a step, at most so long.
  void doze(int milliseconds);
  // From now on whoever submits also tests or waits until all is done.
  void end_thread();
  void abort(std::string_view reason);
  // Ends the thread and the links; what is in flight fails with `aborted`.
  void stop();
  // The Work of `operation` is gone.
  void release(QueuedOperation& operation);

  double deadline_seconds() const { return deadline_seconds_; }
  CommunicatorStatistics statistics() const;

 private:
  // All below: with lock_ held.
  enum class Progress { none, step, finished };
  Progress advance();  // messages, and the head operation by at most one step
  Progress advance_head();
  bool drive_messages();  // true when something moved
  template <typename Body>
  void guarded(Body&& body);  // an exception fails everything
  void run_step(QueuedOperation& head);
  void publish_descriptor(QueuedOperation& operation);
  std::int64_t describe_repeated(QueuedOperation& operation, const PlainCall& call);  // when
  bool exchange_soon(QueuedOperation& operation);
  // run_ahead.cc: whether no rank is more than kLead operations behind `sequence`, which is the
  // next to be published. Fails where one called something else before.
  bool has_room(std::uint32_t sequence);
  // Whether the peer's calls up to `sequence`, published by both, are this rank's; fails where one
  // is not. False where that is not known yet.
  bool matches(std::uint32_t sequence, int peer);
  bool described(std::uint32_t sequence, int peer);  // its descriptor can be read
  bool exchange_when_matched(const QueuedOperation& operation);
  bool make_plan_when_matched(QueuedOperation& operation);
  [[noreturn]] void name_mismatch(std::uint32_t sequence, int peer);
  void check_pairs(const QueuedOperation& operation);  // of an all_to_all_v
  bool step_ready(const QueuedOperation& operation) const;
  bool may_progress() const;
  void finish_head(Route route, std::int64_t bounced_bytes);
  void finish_exchange(std::int64_t when);  // of the flight recorder's clock
  void retire_head();
  void drive_begins() { add(driven_, std::uint64_t{1}); }
  void count_in_flight(int change) { add(in_flight_, change); }
  template <typename T>
  static void add(std::atomic<T>& hint, T change) {
    hint.store(hint.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  void throw_if_failed() const;
  [[noreturn]] void fail(const Error& error, const Blame& blame = {});
  void drop_queue();
  // Fails where something cannot come any more: somebody aborted, a peer is dead. Looks at most
  // every few milliseconds.
  void check_group(const QueuedOperation& operation);
  void check_peers(const QueuedOperation& head);
  // Fails where a rank whose buffers a step may touch has given up: it may have freed them.
  void check_before_step(const QueuedOperation& head);
  // Of a call that needs nothing of others: fails where one that has not come to it has given up.
  void check_before_running_ahead(const QueuedOperation& head);
  // The peer is gone or has given up: a mismatch with it is what to say, if there was one.
  [[noreturn]] void fail_with(int peer, transport::LinkState state, const QueuedOperation& head);
  Error lost(int peer, transport::LinkState state, const QueuedOperation& head) const;
  void check_aborted(const QueuedOperation& operation);
  Error abort_of(int peer) const;
  // The first rank that the head operation waits for, or whose memory; -1: none.
  int blocking_peer(const QueuedOperation& operation) const;
  std::string whereabouts(int peer) const;
  Error timeout_error(const QueuedOperation& operation, double waited) const;
  Error message_timeout(const QueuedOperation& operation, double waited) const;

  void progress_loop();
  void park();
  bool drive_in_background();

  const std::shared_ptr<Group> group_;
  const PlanChoice choice_;
  const double deadline_seconds_;
  const std::uint32_t spins_;
  std::unique_ptr<kernels::ReductionKernels> reduction_;

  // What the head operation's plan sees of the ranks, by rank.
  struct PeerBuffers {
    explicit PeerBuffers(std::size_t size)
        : send(size),
          recv(size),
          send_address(size),
          recv_address(size),
          factors(size),
          send_symmetric(new bool[size]),
          recv_symmetric(new bool[size]) {}
    std::vector<std::byte*> send, recv;
    std::vector<std::uint64_t> send_address, recv_address;
    std::vector<double> factors;
    std::unique_ptr<bool[]> send_symmetric, recv_symmetric;
  } buffers_;

  mutable OwnerLock lock_;
  OperationPool pool_;
  std::unique_ptr<Messages> messages_;
  OperationList queue_;
  std::uint32_t next_sequence_;
  std::uint32_t agreed_;  // up to here every rank has published, and called the same
  std::optional<Error> failure_;
  CommunicatorStatistics statistics_;  // all but `algorithm`:
  std::optional<Route> last_route_;
  FlightRecorder flight_;
  // Who has published the head operation, and still owes its memory or descriptor; -1: nobody.
  int waits_for_ = -1;
  RepeatedCall repeated_;
  bool background_ = false;  // the progress thread holds lock_
  Clock::time_point next_check_{};

  // Hints for the progress thread, which needs no more than to see them soon: written under lock_
  // with plain stores (`waiters_` just before).
  std::atomic<int> in_flight_{0}, waiters_{0};
  std::atomic<std::uint64_t> driven_{0};  // counts submits, tests and waits
  std::atomic<bool> stopping_{false}, thread_ends_{false};
  std::atomic<int> orphans_{0};  // operations whose Works outlive the Communicator
  Naps naps_;
  std::thread thread_;
};

template <typename Body>
void Engine::guarded(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception& problem) {  // no memory, say; the peers must hear of it too
    fail(Error(ErrorCode::internal, fmt::format("native: {}", problem.what())));
  }
}

}  // namespace shoal::collectives::native
