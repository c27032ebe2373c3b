// The queue of collectives and the messages of one mpi Communicator, and who drives them.
//
// Before each collective ranks exchange cards by small point-to-point messages, so that a mismatch
// is named before data moves and a deadline can name who did not come. 16-bit floats, min and max
// (MPI's do not propagate NaN), premultiplied sums and reduce_scatter are an exchange by MPI and a
// reduction here; everything else is MPI's own nonblocking collective.
#pragma once

#include "shoal/collectives/backend/mpi/runtime.h"
// After mpi.h, which defines macros of its own.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::mpi {

// What a rank tells another about its call.
struct MpiCard {
  std::uint64_t sequence = 0;
  Signature signature;
  double factor = 1;
  // Of all_to_all_v: between these two ranks, and elements of the sender's larger buffer.
  std::int64_t sends = 0, expects = 0, longest = 0;
};

struct MpiOperation {
  Call call;
  std::uint64_t sequence = 0;  // of a message: among those from its sender to its receiver
  std::uint64_t ticket = 0;    // of a message in the flight recorder
  // Of a message: cards, then gather.
  enum class Stage { queued, cards, exchange, gather, done } stage = Stage::queued;
  std::vector<MpiCard> own_cards, cards;  // by rank; of a message: one
  std::vector<MPI_Request> requests;
  std::vector<MPI_Request> card_requests;  // receives, by rank; then sends
  std::vector<std::byte> scratch;          // exchanged parts
  std::vector<std::byte> result;           // of a shard that is gathered elsewhere
  std::vector<int> counts, offsets, own_counts, own_offsets;
  std::optional<Clock::time_point> first_test;  // that found it unfinished
  std::atomic<bool> finished{false};
};

class MpiEngine {
 public:
  // `parent` is duplicated; collective over its ranks, blocking: timeout where they do not come.
  // `members`: their ranks in the job.
  MpiEngine(MPI_Comm parent, Store& store, std::string prefix, const CommunicatorOptions& options,
            std::vector<int> members);
  ~MpiEngine() { stop(); }

  int rank() const { return rank_; }
  int size() const { return size_; }
  double deadline_seconds() const { return deadline_seconds_; }
  Store& store() const { return store_; }
  const std::string& prefix() const { return prefix_; }
  int member(int peer) const { return members_[static_cast<std::size_t>(peer)]; }
  CommunicatorStatistics statistics() const;

  std::shared_ptr<MpiOperation> submit(Call call);
  bool test(MpiOperation& operation);
  void wait(MpiOperation& operation, Deadline deadline);
  void abort(std::string_view reason);
  void stop();

  // Collective over all ranks, blocking, nothing in flight. Ranks that do not come are named at
  // the deadline. Once all are here MPI_Comm_split has none, and holds up all mpi groups of the
  // process: a rank that stops in it is mpirun's to notice, and no two threads of a process may
  // split at a time. The caller frees the result; MPI_COMM_NULL for color < 0.
  MPI_Comm split(int color, int rank, Deadline deadline);

 private:
  // All below: with runtime_.mutex held.
  template <typename Body>
  void guarded(Body&& body);  // an exception fails everything
  [[noreturn]] void fail(const Error& error);
  void abandon();                       // what is in flight, in memory that outlives us
  bool is_over(MpiOperation& o) const;  // cancels receives; true when MPI uses none of its memory
  void touch() { last_driven_ = Clock::now().time_since_epoch().count(); }
  // As the job numbers ranks, a call's root and peer too.
  std::string words(Signature signature) const;
  std::string named(const MpiOperation& o) const;
  void throw_if_failed(const Call& call);  // or aborted; `call`: what meets it
  void check_length(const Call& call) const;
  bool advance();
  bool advance_head();
  void post_cards(MpiOperation& o);
  void check_cards(const MpiOperation& o) const;
  void finish(MpiOperation& o);
  [[noreturn]] void throw_timeout(MpiOperation& waited_for, double waited);

  // collectives.cc
  // Why MPI's own reduction, which has orders of its own, does not do; empty where it does.
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

  // Without the lock.
  MPI_Comm duplicate(MPI_Comm parent);
  void hear(std::string text);
  bool look_for_abort();
  void progress_loop();

  int rank_ = 0, size_ = 1;
  Store& store_;
  const std::string prefix_;
  const double deadline_seconds_;
  const bool fixed_order_;
  const std::vector<int> members_;
  MpiRuntime& runtime_;
  std::unique_ptr<kernels::ReductionKernels> reduction_;
  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL, messages_comm_ = MPI_COMM_NULL;
  // Below: under runtime_.mutex.
  std::deque<std::shared_ptr<MpiOperation>> queue_;
  std::vector<std::shared_ptr<MpiOperation>> messages_;
  std::uint64_t next_sequence_ = 1;
  std::map<std::pair<int, int>, std::uint64_t> message_sequences_;  // by (from, to)
  std::optional<Error> failure_;
  CommunicatorStatistics statistics_;
  FlightRecorder flight_;  // of the collectives
  bool background_ = false;

  std::mutex abort_mutex_;  // innermost
  std::string abort_text_;  // never changes once aborted_
  std::atomic<bool> aborted_{false};

  std::atomic<int> waiters_{0};
  std::atomic<Clock::rep> last_driven_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// True once all of them are complete.
bool all_done(std::vector<MPI_Request>& requests);

}  // namespace shoal::collectives::mpi
