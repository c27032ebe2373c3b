// The queue of operations of one native Communicator, and their progress.
//
// Collectives run strictly in the order of submission, one at a time; messages run beside them. A
// thread that submits, tests or waits drives the head operation. Otherwise the progress thread does
// (progress_thread.h), one step at a time; it sleeps instead of spinning (decision 3).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/collectives/backend/engine_base.h"
#include "shoal/collectives/backend/native/huge_pages.h"
#include "shoal/collectives/backend/native/owner_lock.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/native/queued_operation.h"
#include "shoal/collectives/backend/native/repeated_call.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/collectives/transport/doorbell.h"

namespace shoal::collectives::native {

class Messages;

class Engine final : private EngineBase {
 public:
  // `first_sequence`: number of the first call, equal on all ranks. Tests start before it wraps.
  Engine(std::shared_ptr<Group> group, PlanChoice choice, double deadline_seconds,
         FlightRecorder flight, std::uint32_t first_sequence = 1);
  ~Engine() override;
  // Called when the Communicator ends: stops the engine. Deletes it now, or together with the last
  // Work that a caller still holds.
  static void leave(Engine* engine);
  struct Deleter {
    void operator()(Engine* engine) const { leave(engine); }
  };

  // `call` must have passed the checks. `fusion`: the calls it was fused from, or null.
  WorkPtr submit(Call&& call, std::unique_ptr<Fusion> fusion = nullptr);
  // Fast path of a small call that equals the previous one and so needs no checks. Null if the
  // call differs or cannot be published at once: use submit().
  WorkPtr repeat(const PlainCall& call);
  bool test(QueuedOperation& operation);
  // nullopt: waits for deadline_seconds().
  void wait(QueuedOperation& operation, std::optional<Deadline> deadline = {});
  // See NodeWork::drive.
  bool drive(QueuedOperation& operation, const Deadline& until, const std::atomic<int>& wanted,
             bool may_spin);
  void interrupt();
  // Sleeps until the head operation may take a step, but at most this long.
  void doze(int milliseconds);
  // Ends the progress thread: from now on callers test or wait until every operation is done.
  void end_thread();
  void abort(std::string_view reason);
  // Ends the thread and the links; operations in flight fail with `aborted`.
  void stop();
  // Called when the Work of `operation` is destroyed.
  void release(QueuedOperation& operation);

  using EngineBase::deadline_seconds;
  using EngineBase::set_deadline_seconds;
  CommunicatorStatistics statistics() const;

 private:
  // Interval at which a sleeping thread checks links, aborts and deadlines.
  static constexpr int kSleepMilliseconds = 20;

  // Call everything below with lock_ held.
  enum class Progress { none, step, finished };
  // Loop of wait() and drive(). Returns true once `operation` is done, false if stop() came first.
  // Calls look() now and then: it returns the longest sleep in milliseconds, or throws.
  template <typename Stop, typename Look>
  bool progress_until_done(QueuedOperation& operation, transport::Backoff backoff, Stop&& stop,
                           Look&& look);
  Progress advance();  // messages, and the head operation by at most one step
  Progress advance_head();
  bool drive_messages();  // true if there was progress
  void run_step(QueuedOperation& head);
  void publish_descriptor(QueuedOperation& operation);
  // Returns the time of submission.
  std::int64_t describe_repeated(QueuedOperation& operation, const PlainCall& call);
  bool exchange_soon(QueuedOperation& operation);
  // run_ahead.cc: whether `sequence`, the next operation, can be published. It cannot while a rank
  // is more than kLead operations behind it. Fails if a rank made a different earlier call.
  bool has_room(std::uint32_t sequence);
  // Whether the peer's calls up to `sequence` equal this rank's; both must have published it. Fails
  // if the call that differs can be read; false if it cannot be read yet.
  bool matches(std::uint32_t sequence, int peer);
  bool described(std::uint32_t sequence, int peer);  // the peer's descriptor can be read
  bool exchange_when_matched(const QueuedOperation& operation);
  bool make_plan_when_matched(QueuedOperation& operation);
  [[noreturn]] void name_mismatch(std::uint32_t sequence, int peer);
  void check_pairs(const QueuedOperation& operation);  // all_to_all_v only
  bool step_ready(const QueuedOperation& operation) const;
  bool may_progress() const;
  void finish_head(Route route, std::int64_t bounced_bytes);
  void finish_exchange(std::int64_t when);  // by the flight recorder's clock
  void retire_head();
  [[noreturn]] void fail(const Error& error) override { fail(error, {}); }
  [[noreturn]] void fail(const Error& error, const Blame& blame);
  void drop_queue();
  // Fails if a rank aborted, or if a rank that the head operation needs is gone. Checks at most
  // once every few milliseconds.
  void check_group(const QueuedOperation& operation);
  void check_peers(const QueuedOperation& head);
  // Fails if a rank whose buffers the next step may touch has failed: it may have freed them.
  void check_before_step(const QueuedOperation& head);
  // For a call that needs no other rank's data: fails if a rank failed before it reached the call.
  void check_before_running_ahead(const QueuedOperation& head);
  // Fails because `peer` is gone or has failed. If its call did not match this rank's, the error
  // names that mismatch instead.
  [[noreturn]] void fail_with(int peer, transport::LinkState state, const QueuedOperation& head);
  Error lost(int peer, transport::LinkState state, const QueuedOperation& head) const;
  void check_aborted(const QueuedOperation& operation);
  Error abort_of(int peer) const;
  // The first rank whose progress or memory the operation waits for; -1: none.
  int blocking_peer(const QueuedOperation& operation) const;
  std::string whereabouts(int peer) const;
  Error timeout_error(const QueuedOperation& operation, double waited) const;
  Error message_timeout(const QueuedOperation& operation, double waited) const;

  bool drive() override;
  void if_unlocked(const std::function<void()>& body) override;

  const std::shared_ptr<Group> group_;
  const PlanChoice choice_;
  const std::uint32_t spins_;
  std::unique_ptr<kernels::ReductionKernels> reduction_;
  HugePages huge_pages_;  // guarded by the lock

  // By rank: the buffers that the head operation's plan uses.
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
  std::uint32_t agreed_;               // newest sequence up to which all ranks' calls are equal
  CommunicatorStatistics statistics_;  // without `algorithm`, which follows from last_route_
  std::optional<Route> last_route_;
  FlightRecorder flight_;
  // A rank that has published the head operation, but not yet its descriptor or its memory segment;
  // -1: none.
  int waits_for_ = -1;
  RepeatedCall repeated_;
  Clock::time_point next_check_{};

  std::atomic<bool> stopping_{false};
  std::atomic<int> orphans_{0};  // operations whose Works outlive the Communicator
};

}  // namespace shoal::collectives::native
