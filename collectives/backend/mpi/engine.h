// The queued collectives and messages of one mpi Communicator, and their progress.
//
// Before each collective, ranks exchange cards by small point-to-point messages. Errors can then
// name a mismatch before data moves, and missing ranks at the deadline.
//
// For 16-bit floats, min and max (MPI's do not propagate NaN), premultiplied sums and
// reduce_scatter, ranks exchange inputs by MPI and reduce them here. Everything else is MPI's own
// non-blocking collective.
#pragma once

#include "shoal/collectives/backend/mpi/runtime.h"
// These headers follow mpi.h, which defines macros of its own.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/engine_base.h"
#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/kernels/reduction.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::mpi {

// A rank's description of its call, which it sends to another rank.
struct MpiCard {
  std::uint64_t sequence = 0;
  Signature signature;
  double factor = 1;
  // all_to_all_v: elements between these two ranks, and elements of the sender's longer buffer.
  std::int64_t sends = 0, expects = 0, longest = 0;
};

struct MpiOperation {
  Call call;
  std::uint64_t sequence = 0;  // messages: counts those from its sender to its receiver
  std::uint64_t ticket = 0;    // messages: in the flight recorder
  // A receive goes from `cards` to `gather`; a send begins at `gather`.
  enum class Stage { queued, cards, exchange, gather, done } stage = Stage::queued;
  std::vector<MpiCard> own_cards, cards;  // by rank; messages: one
  std::vector<MPI_Request> requests;
  std::vector<MPI_Request> card_requests;  // receives, by rank; then sends
  std::vector<std::byte> scratch;          // exchanged parts
  std::vector<std::byte> result;           // a shard that the root gathers
  std::vector<int> counts, offsets, own_counts, own_offsets;
  std::optional<Clock::time_point> first_test;  // first test() that found it unfinished
  std::atomic<bool> finished{false};
};

class MpiEngine final : private EngineBase {
 public:
  // Duplicates `parent`. Collective over its ranks and blocking. Throws timeout if ranks are
  // missing. `members`: their ranks in the job.
  MpiEngine(MPI_Comm parent, Store& store, std::string prefix, const CommunicatorOptions& options,
            std::vector<int> members);
  ~MpiEngine() override { stop(); }

  int rank() const { return rank_; }
  int size() const { return size_; }
  using EngineBase::deadline_seconds;
  Store& store() const { return store_; }
  const std::string& prefix() const { return prefix_; }
  int member(int peer) const { return members_[static_cast<std::size_t>(peer)]; }
  CommunicatorStatistics statistics() const;

  std::shared_ptr<MpiOperation> submit(Call call);
  bool test(MpiOperation& operation);
  void wait(MpiOperation& operation, Deadline deadline);
  void abort(std::string_view reason);
  void stop();

  // Collective over all ranks and blocking; nothing may be in flight. At the deadline, the error
  // names the missing ranks. Once all ranks have entered, MPI_Comm_split has no deadline and blocks
  // all mpi groups of the process. Only mpirun notices a rank that stops inside it.
  //
  // Only one thread of a process may split at a time. The caller frees the result. MPI_COMM_NULL
  // for color < 0.
  MPI_Comm split(int color, int rank, Deadline deadline);

 private:
  // Call all functions below with runtime_.mutex held.
  [[noreturn]] void fail(const Error& error) override;
  void abandon();  // moves operations in flight to memory that outlives the engine
  // Cancels receives. Returns true if MPI uses none of the operation's memory.
  bool is_over(MpiOperation& o) const;
  // Describes the call, with its root or peer as a rank of the job.
  std::string words(Signature signature) const;
  std::string named(const MpiOperation& o) const;
  void throw_if_failed(const Call& call);  // throws also if aborted; the error names `call`
  void check_length(const Call& call) const;
  bool advance();
  bool advance_head();
  void post_cards(MpiOperation& o);
  void check_cards(const MpiOperation& o) const;
  void finish(MpiOperation& o);
  [[noreturn]] void throw_timeout(MpiOperation& waited_for, double waited);

  // collectives.cc
  // Why MPI's own reduction cannot be used, such as for its order. Empty: it can.
  std::string_view why_exchanged(const Call& call) const;
  bool reduced_by_mpi(const Call& call) const { return why_exchanged(call).empty(); }
  void start_data(MpiOperation& o);
  MPI_Request start_move(MpiOperation& o);
  void start_exchange(MpiOperation& o);
  void finish_exchange(MpiOperation& o);
  algorithm::Range part(const Call& call, int peer) const;

  // messages.cc
  void post_message(MpiOperation& o);
  bool advance_message(MpiOperation& o);
  bool advance_messages();
  std::string message_timeout(const MpiOperation& o, double waited) const;

  // Call without the lock.
  MPI_Comm duplicate(MPI_Comm parent);
  void hear(std::string text);
  bool look_for_abort();
  bool drive() override;
  void look() override;
  void if_unlocked(const std::function<void()>& body) override;

  int rank_ = 0, size_ = 1;
  Store& store_;
  const std::string prefix_;
  const bool fixed_order_;
  const std::vector<int> members_;
  MpiRuntime& runtime_;
  std::unique_ptr<kernels::ReductionKernels> reduction_;
  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL, messages_comm_ = MPI_COMM_NULL;
  // Below: guarded by runtime_.mutex.
  std::deque<std::shared_ptr<MpiOperation>> queue_;
  std::vector<std::shared_ptr<MpiOperation>> messages_;
  std::uint64_t next_sequence_ = 1;
  std::map<std::pair<int, int>, std::uint64_t> message_sequences_;  // by (from, to)
  CommunicatorStatistics statistics_;
  FlightRecorder flight_;  // records the operations

  std::mutex abort_mutex_;  // innermost
  std::string abort_text_;  // does not change once aborted_ is set
  std::atomic<bool> aborted_{false};

  std::atomic<bool> stopping_{false};
  // Used by the progress thread only:
  Clock::time_point next_look_;
  bool looks_ = true;
};

// Returns true once all requests are complete.
bool all_done(std::vector<MPI_Request>& requests);

}  // namespace shoal::collectives::mpi
