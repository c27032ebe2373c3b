#include "shoal/collectives/backend/mpi/engine.h"

#include <algorithm>
#include <climits>
#include <numeric>

#include <fmt/ranges.h>
#include <sched.h>

#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::mpi {
namespace {

constexpr auto kNap = std::chrono::microseconds(500);  // between two polls of the progress thread
constexpr std::chrono::microseconds kLongestNap{2000};
constexpr auto kLookEvery = std::chrono::milliseconds(250);  // polls the store for an abort

int place_in(MPI_Comm comm) {
  const std::lock_guard lock(MpiRuntime::instance().mutex);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

constexpr std::int64_t kMost = INT_MAX;  // most elements of a buffer

Error too_long(const std::string& call, std::int64_t elements) {
  return Error(
      ErrorCode::invalid_argument,
      fmt::format("mpi: {} needs a buffer of {} elements, MPI counts to {}", call, elements, kMost),
      "split the call, or use the native backend (SHOAL_BACKEND, ddp_backend or --backend)");
}

std::int64_t count_for(const std::vector<std::int64_t>& counts, int peer) {
  return counts.empty() ? 0 : counts[static_cast<std::size_t>(peer)];
}

}  // namespace

std::string MpiEngine::words(Signature signature) const {
  if (signature.root >= 0) signature.root = member(signature.root);
  return describe(signature);
}

std::string MpiEngine::named(const MpiOperation& o) const {
  return fmt::format("{} (#{})", words(signature_of(o.call)), o.sequence);
}

bool all_done(std::vector<MPI_Request>& requests) {
  int done = 0;
  check_mpi(
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
      "MPI_Testall");
  return done != 0;
}

MpiEngine::MpiEngine(MPI_Comm parent, Store& store, std::string prefix,
                     const CommunicatorOptions& options, std::vector<int> members)
    : EngineBase("mpi", options.deadline_seconds, kLongestNap),
      store_(store),
      prefix_(std::move(prefix)),
      fixed_order_(options.fixed_order),
      members_(std::move(members)),
      runtime_(MpiRuntime::instance()),
      reduction_(make_rank_reduction(options.fixed_order)),
      flight_(prefix_, place_in(parent), members_, options.flight_directory) {
  {
    const std::lock_guard lock(runtime_.mutex);
    MPI_Comm_rank(parent, &rank_);
    MPI_Comm_size(parent, &size_);
  }
  for (MPI_Comm* comm : {&data_, &control_, &messages_comm_}) *comm = duplicate(parent);
  next_look_ = Clock::now() + kLookEvery;
  progress_.start();
}

void MpiEngine::fail(const Error& error) {
  if (!failure_) {
    failure_ = error;
    if (error.rank() < 0) failure_->at_rank(member(rank_));
    flight_.failed(failure_->what());
  }
  abandon();
  if (error.code() != ErrorCode::aborted) try {
      // Other ranks may not see the error and would wait until their deadline.
      abort(error.what());
    } catch (const Error& problem) {
      log::debug("mpi: rank {} cannot tell the others: {}", member(rank_), problem.what());
    }
  throw Error(*failure_);
}

// Polls and releases the lock in between, so that other threads of this process make progress.
MPI_Comm MpiEngine::duplicate(MPI_Comm parent) {
  struct Duplicate {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  const auto made = std::make_shared<Duplicate>();  // MPI writes there when done
  const auto start = Clock::now();
  for (int done = 0;; sched_yield()) {
    const std::lock_guard lock(runtime_.mutex);
    guarded([&] {
      if (made->comm == MPI_COMM_NULL && made->request == MPI_REQUEST_NULL)
        check_mpi(MPI_Comm_idup(parent, &made->comm, &made->request), "MPI_Comm_idup");
      check_mpi(MPI_Test(&made->request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      if (done)
        check_mpi(MPI_Comm_set_errhandler(made->comm, MPI_ERRORS_RETURN),
                  "MPI_Comm_set_errhandler");
      if (done || seconds_since(start) < deadline_seconds_) return;
      runtime_.outstanding.push_back(made);
      throw Error(ErrorCode::timeout,
                  fmt::format("mpi: the group of ranks {} was not made within {} s",
                              fmt::join(members_, ", "), deadline_seconds()),
                  "see whether all of them made it, or raise SHOAL_DEADLINE_S")
          .at_rank(member(rank_))
          .in_operation("MPI_Comm_idup");
    });
    if (done) return made->comm;
  }
}

// Operations that MPI has begun can be neither cancelled nor awaited. Their memory is kept, and MPI
// may still access the caller's buffers (work.h). Only unmatched receives are cancelled.
void MpiEngine::abandon() {
  runtime_.failed = true;  // MPI_Finalize would wait for the operations
  const auto keep = [&](auto& operations) {
    for (auto& operation : operations)
      if (!is_over(*operation)) runtime_.outstanding.push_back(std::move(operation));
    operations.clear();
  };
  keep(queue_);
  keep(messages_);
  progress_.none_in_flight();
}

bool MpiEngine::is_over(MpiOperation& o) const {
  const bool receives = o.call.operation == Operation::recv;
  const auto over = [](MPI_Request& request, bool is_receive) {
    if (request == MPI_REQUEST_NULL) return true;
    if (is_receive) MPI_Cancel(&request);
    int done = 0;
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  };
  bool all = true;
  for (std::size_t i = 0; i < o.card_requests.size(); ++i)
    all = over(o.card_requests[i], receives || i < static_cast<std::size_t>(size_)) && all;
  for (MPI_Request& request : o.requests) all = over(request, receives) && all;
  return all;
}

// MPI counts a part's elements in an int. Open MPI's schedules multiply that by a rank, in an int
// too, so the root's whole buffer must fit. All ranks decide alike, so that none proceeds while
// another refuses. For all_to_all_v, ranks exchange their lengths by card (check_cards).
void MpiEngine::check_length(const Call& call) const {
  std::int64_t most = table_bytes(call, size_) / static_cast<std::int64_t>(size_of(call.dtype));
  // Exchanged reductions: the rank with the largest part receives it from all ranks.
  for (int peer = 0; call.reduces() && !reduced_by_mpi(call) && peer < size_; ++peer)
    most = std::max(most, part(call, peer).size() * size_);
  if (most > kMost) throw too_long(words(signature_of(call)), most);
}

std::shared_ptr<MpiOperation> MpiEngine::submit(Call call) {
  check_length(call);
  auto operation = std::make_shared<MpiOperation>();
  operation->call = std::move(call);
  {
    const std::lock_guard lock(runtime_.mutex);
    throw_if_failed(operation->call);
    progress_.driven();
    progress_.count_in_flight(1);
    if (is_message(operation->call.operation)) {
      messages_.push_back(operation);
      guarded([&] { post_message(*operation); });
    } else {
      operation->sequence = next_sequence_++;
      flight_.submitted(static_cast<std::uint32_t>(operation->sequence),
                        signature_of(operation->call));
      queue_.push_back(operation);
    }
    guarded([&] { advance(); });
  }
  progress_.submitted();
  return operation;
}

bool MpiEngine::test(MpiOperation& operation) {
  if (operation.finished) return true;
  const std::lock_guard lock(runtime_.mutex);
  if (operation.finished) return true;
  throw_if_failed(operation.call);
  progress_.driven();
  guarded([&] {
    advance();
    if (operation.finished) return;
    const double waited = seconds_since_first(operation.first_test);
    if (waited > deadline_seconds_) throw_timeout(operation, waited);
  });
  return operation.finished;
}

void MpiEngine::wait(MpiOperation& operation, Deadline deadline) {
  const auto start = Clock::now();
  progress_.waiters.fetch_add(1);
  struct Leave {
    std::atomic<int>& waiters;
    ~Leave() { waiters.fetch_sub(1); }
  } const leave{progress_.waiters};
  while (!operation.finished) {
    {
      const std::lock_guard lock(runtime_.mutex);
      if (operation.finished) break;
      throw_if_failed(operation.call);
      progress_.driven();
      bool moved = false;
      guarded([&] { moved = advance(); });
      if (moved) continue;
      if (deadline.passed()) guarded([&] { throw_timeout(operation, seconds_since(start)); });
    }
    sched_yield();
  }
}

void MpiEngine::abort(std::string_view reason) {
  const std::string key = prefix_ + "/abort";
  store_.compare_set(key, std::nullopt, fmt::format("rank {} aborted: {}", member(rank_), reason));
  if (const auto text = store_.try_get(key)) hear(*text);
}

// Call without runtime_.mutex. The next thread that drives MPI fails with `text`.
void MpiEngine::hear(std::string text) {
  const std::lock_guard lock(abort_mutex_);
  if (aborted_) return;
  abort_text_ = std::move(text);
  aborted_ = true;
}

void MpiEngine::stop() {
  if (stopping_.exchange(true)) return;
  progress_.end();
  const std::lock_guard lock(runtime_.mutex);
  if (queue_.empty() && messages_.empty() && !failure_) {
    for (MPI_Comm* comm : {&data_, &control_, &messages_comm_}) MPI_Comm_free(comm);
  } else {
    abandon();
  }
  if (!failure_)
    failure_ = Error(ErrorCode::aborted, "the Communicator was destroyed").at_rank(member(rank_));
}

CommunicatorStatistics MpiEngine::statistics() const {
  const std::lock_guard lock(runtime_.mutex);
  CommunicatorStatistics statistics = statistics_;
  statistics.transport = statistics.algorithm = "mpi";
  return statistics;
}

MPI_Comm MpiEngine::split(int color, int rank, Deadline deadline) {
  // MPI_Comm_split exists only as a blocking call. No rank enters it before all ranks are here.
  Call meeting;
  meeting.operation = Operation::split;
  wait(*submit(std::move(meeting)), deadline);
  const std::lock_guard lock(runtime_.mutex);
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(data_, color < 0 ? MPI_UNDEFINED : color, rank, &part),
            "MPI_Comm_split");
  return part;
}

void MpiEngine::throw_if_failed(const Call& call) {
  EngineBase::throw_if_failed();
  if (!aborted_) return;
  guarded([&] {
    throw Error(ErrorCode::aborted, abort_text_)
        .at_rank(member(rank_))
        .in_operation(words(signature_of(call)));
  });
}

// Looks only while something is in flight. Returns false if further looks are useless. Call without
// the lock, because the store may be slow.
bool MpiEngine::look_for_abort() {
  {
    // If the lock is taken, another thread is driving MPI.
    const std::unique_lock lock(runtime_.mutex, std::try_to_lock);
    if (aborted_ || (lock && failure_)) return false;
    if (lock && queue_.empty() && messages_.empty()) return true;
  }
  try {
    if (auto text = store_.try_get(prefix_ + "/abort")) hear(std::move(*text));
    return true;
  } catch (const Error& problem) {
    log::warn("mpi: an abort would not be heard any more, deadlines hold: {}", problem.what());
    return false;
  }
}

// Advances every message and, by one stage if possible, the head collective. Returns true if there
// was progress.
bool MpiEngine::advance() {
  const bool message = advance_messages();
  return advance_head() || message;
}

bool MpiEngine::advance_head() {
  if (queue_.empty()) return false;
  MpiOperation& head = *queue_.front();
  switch (head.stage) {
    case MpiOperation::Stage::queued:
      post_cards(head);
      head.stage = MpiOperation::Stage::cards;
      return true;
    case MpiOperation::Stage::cards:
      if (!all_done(head.card_requests)) return false;
      check_cards(head);
      flight_.matched(static_cast<std::uint32_t>(head.sequence));
      start_data(head);
      return true;
    case MpiOperation::Stage::exchange:
      if (!all_done(head.requests)) return false;
      finish_exchange(head);
      return true;
    case MpiOperation::Stage::gather:
      if (!all_done(head.requests)) return false;
      finish(head);
      return true;
    case MpiOperation::Stage::done:
      break;
  }
  return false;
}

void MpiEngine::post_cards(MpiOperation& o) {
  constexpr int kTag = 1;
  for (int peer = 0; peer < size_; ++peer) {
    o.own_cards.push_back({o.sequence, signature_of(o.call), o.call.factor});
    if (o.call.operation != Operation::all_to_all_v) continue;
    o.own_cards.back().sends = count_for(o.call.counts, peer);
    o.own_cards.back().expects = count_for(o.call.recv_counts, peer);
    o.own_cards.back().longest =
        std::max(o.call.count, std::reduce(o.call.recv_counts.begin(), o.call.recv_counts.end()));
  }
  o.cards = o.own_cards;
  for (int pass = 0; pass < 2; ++pass)
    for (int peer = 0; peer < size_; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer != rank_ && pass == 0)
        check_mpi(MPI_Irecv(&o.cards[p], sizeof(MpiCard), MPI_BYTE, peer, kTag, control_, &request),
                  "MPI_Irecv");
      if (peer != rank_ && pass == 1)
        check_mpi(
            MPI_Isend(&o.own_cards[p], sizeof(MpiCard), MPI_BYTE, peer, kTag, control_, &request),
            "MPI_Isend");
      o.card_requests.push_back(request);
    }
}

void MpiEngine::check_cards(const MpiOperation& o) const {
  const auto fail = [&](int peer, const std::string& text, const char* remedy) {
    throw Error(ErrorCode::mismatch, text, remedy)
        .at_rank(member(rank_))
        .with_peer(member(peer))
        .in_operation(named(o));
  };
  for (int peer = 0; peer < size_; ++peer) {
    const MpiCard& own = o.own_cards[static_cast<std::size_t>(peer)];
    const MpiCard& theirs = o.cards[static_cast<std::size_t>(peer)];
    if (theirs.sequence != own.sequence || theirs.signature != own.signature) {
      std::string text =
          fmt::format("ranks called different operations: rank {} called {}, rank {} called {}",
                      member(rank_), words(own.signature), member(peer), words(theirs.signature));
      if (describe(own.signature) == describe(theirs.signature)) text += " with other counts";
      fail(peer, text, "call the same operations in the same order on every rank");
    }
    if (theirs.longest > kMost)
      throw too_long(fmt::format("{} on rank {}", words(signature_of(o.call)), member(peer)),
                     theirs.longest)
          .at_rank(member(rank_))
          .with_peer(member(peer))
          .in_operation(named(o));
    if (theirs.sends != own.expects && o.call.operation == Operation::all_to_all_v)
      fail(peer,
           fmt::format("rank {} sends {} elements to rank {}, which expects {}", member(peer),
                       theirs.sends, member(rank_), own.expects),
           "let what a rank sends be what its peer receives");
    if (own.sends != theirs.expects && o.call.operation == Operation::all_to_all_v)
      fail(peer,
           fmt::format("rank {} sends {} elements to rank {}, which expects {}", member(rank_),
                       own.sends, member(peer), theirs.expects),
           "let what a rank sends be what its peer receives");
  }
}

void MpiEngine::finish(MpiOperation& o) {
  const Call& c = o.call;
  const bool has_result = c.operation != Operation::reduce || rank_ == c.root;
  if (c.op == ReduceOp::avg && reduced_by_mpi(c) && has_result && c.count > 0)
    reduction_->scale(c.dtype, c.recv, 1.0 / size_, c.count, Stream{});
  o.stage = MpiOperation::Stage::done;
  ++statistics_.operations;
  statistics_.by_progress_thread += background_;
  progress_.count_in_flight(-1);
  o.finished = true;
  if (is_message(c.operation)) return flight_.message_finished(o.ticket);
  flight_.finished(static_cast<std::uint32_t>(o.sequence));
  queue_.pop_front();
}

void MpiEngine::throw_timeout(MpiOperation& waited_for, double waited) {
  if (is_message(waited_for.call.operation))
    throw Error(ErrorCode::timeout, message_timeout(waited_for, waited),
                "see what that rank does, or raise SHOAL_DEADLINE_S")
        .at_rank(member(rank_))
        .with_peer(member(waited_for.call.root))
        .in_operation(words(signature_of(waited_for.call)));
  MpiOperation& head = *queue_.front();
  std::vector<int> missing;
  for (int peer = 0; head.stage == MpiOperation::Stage::cards && peer < size_; ++peer) {
    int done = 1;
    MPI_Test(&head.card_requests[static_cast<std::size_t>(peer)], &done, MPI_STATUS_IGNORE);
    if (!done) missing.push_back(member(peer));
  }
  throw Error(
      ErrorCode::timeout,
      fmt::format("{} did not finish within {:.1f} s; {}", named(head), waited,
                  missing.empty() ? std::string("every rank called it, the data did not arrive")
                                  : fmt::format("missing: rank(s) {}", fmt::join(missing, ", "))),
      "see what those ranks do, or raise SHOAL_DEADLINE_S")
      .at_rank(member(rank_))
      .with_peer(missing.empty() ? -1 : missing.front())
      .in_operation(words(signature_of(waited_for.call)));
}

void MpiEngine::if_unlocked(const std::function<void()>& body) {
  const std::unique_lock lock(runtime_.mutex, std::try_to_lock);
  if (lock) body();
}

void MpiEngine::look() {
  if (!looks_ || Clock::now() < next_look_) return;
  looks_ = look_for_abort();
  next_look_ = Clock::now() + kLookEvery;
}

bool MpiEngine::drive() {
  for (; progress_.undisturbed(); look(), std::this_thread::sleep_for(kNap)) {
    const std::unique_lock lock(runtime_.mutex, std::try_to_lock);
    if (!lock || (queue_.empty() && messages_.empty()) || failure_) return false;
    background_ = true;
    try {
      throw_if_failed((queue_.empty() ? messages_.front() : queue_.front())->call);
      guarded([&] {
        while (progress_.waiters == 0 && advance()) {
        }
      });
    } catch (const std::exception& problem) {
      // failure_ keeps the error; the next call on any thread throws it.
      log::debug("mpi: rank {}, progress thread: {}", member(rank_), problem.what());
    }
    background_ = false;
  }
  return true;
}

}  // namespace shoal::collectives::mpi
