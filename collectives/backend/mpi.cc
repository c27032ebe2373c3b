// Whole collectives from MPI (Open MPI, MPI_THREAD_SERIALIZED behind one lock).
//
// Before each operation ranks exchange their calls by small point-to-point messages, so that a
// mismatch is named before data moves and a deadline can name who did not come. 16-bit floats,
// min and max (MPI's do not propagate NaN) and reduce_scatter are an exchange by MPI and a
// reduction in rank order here; everything else is MPI's own nonblocking collective.
#include <mpi.h>
// After mpi.h, which defines macros of its own.
#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/ranges.h>
#include <sched.h>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/backend/backends.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

constexpr auto kTakeOverAfter = std::chrono::microseconds(300);
constexpr auto kNap = std::chrono::microseconds(500);

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw_error(ErrorCode::io, "mpi: {}: {}", what,
              std::string(text, static_cast<std::size_t>(length)));
}

// MPI itself: started once a process, ended at its exit if nothing failed (a failed group would
// hang in MPI_Finalize).
class MpiRuntime {
 public:
  static MpiRuntime& instance() {
    static MpiRuntime runtime;
    return runtime;
  }
  std::mutex mutex;  // around every MPI call
  std::atomic<bool> failed{false};

 private:
  MpiRuntime() {
    int initialized = 0, provided = 0;
    MPI_Initialized(&initialized);
    if (!initialized) {
      if (!std::getenv("OMPI_COMM_WORLD_SIZE") && !std::getenv("PMI_SIZE") &&
          !std::getenv("PMIX_RANK"))
        throw Error(ErrorCode::unavailable, "the mpi backend needs its ranks started by mpirun",
                    "start with mpirun, or use --backend native");
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init");
      ours_ = true;
    } else {
      MPI_Query_thread(&provided);
    }
    if (provided < MPI_THREAD_SERIALIZED)
      throw_error(ErrorCode::unavailable,
                  "mpi: this MPI gives thread level {}, MPI_THREAD_SERIALIZED ({}) is needed",
                  provided, MPI_THREAD_SERIALIZED);
  }
  ~MpiRuntime() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (ours_ && !finalized && !failed) MPI_Finalize();
  }
  bool ours_ = false;
};

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i64:
      return MPI_INT64_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i8:
      return MPI_INT8_T;
    case DType::bf16:
    case DType::f16:
      return MPI_UINT16_T;  // moved, never added, by MPI
  }
  SHOAL_ASSERT(false);
}

// What ranks tell each other about a call.
struct Card {
  std::uint64_t sequence = 0;
  std::int64_t count = 0;
  std::int32_t root = -1;
  std::uint8_t operation = 0, dtype = 0, op = 0, padding = 0;
  friend bool operator==(const Card&, const Card&) = default;
};

std::string describe(const Card& card) {
  return describe(Call{static_cast<Operation>(card.operation), nullptr, nullptr, card.count,
                       static_cast<DType>(card.dtype), static_cast<ReduceOp>(card.op), card.root});
}

struct QueuedCall {
  Call call;
  Card card;
  enum class Stage { queued, cards, exchange, gather, done } stage = Stage::queued;
  std::vector<Card> cards;  // by rank
  std::vector<MPI_Request> requests;
  std::vector<MPI_Request> card_requests;  // receives, by rank; then sends
  std::vector<std::byte> scratch;          // exchanged parts
  std::vector<int> counts, offsets, own_counts, own_offsets;
  std::atomic<bool> finished{false};
};

class MpiEngine {
 public:
  MpiEngine(const World& world, Store& store, std::string prefix, double deadline_seconds)
      : rank_(world.rank),
        size_(world.size),
        store_(store),
        prefix_(std::move(prefix)),
        deadline_seconds_(deadline_seconds),
        runtime_(MpiRuntime::instance()),
        reduction_(kernels::make_cpu_reduction()) {
    const std::lock_guard lock(runtime_.mutex);
    int mpi_rank = -1, mpi_size = -1;
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_size);
    if (mpi_rank != rank_ || mpi_size != size_)
      throw Error(ErrorCode::unavailable,
                  fmt::format("MPI says rank {} of {}, the launch variables say rank {} of {}",
                              mpi_rank, mpi_size, rank_, size_),
                  "start every rank with one mpirun");
    for (MPI_Comm* comm : {&data_, &control_}) {
      check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, comm), "MPI_Comm_dup");
      check_mpi(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    thread_ = std::thread([this] { progress_loop(); });
  }

  ~MpiEngine() { stop(); }

  int rank() const { return rank_; }
  int size() const { return size_; }
  double deadline_seconds() const { return deadline_seconds_; }

  std::shared_ptr<QueuedCall> submit(const Call& call) {
    constexpr std::int64_t kMost = INT_MAX;
    if (std::max(call.send_bytes(size_), call.recv_bytes(size_)) >
        kMost * static_cast<std::int64_t>(size_of(call.dtype)))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("mpi: {} is more than {} elements", describe(call), kMost),
                  "split the call, or use --backend native");
    auto queued = std::make_shared<QueuedCall>();
    queued->call = call;
    const std::lock_guard lock(runtime_.mutex);
    throw_if_failed();
    queued->card = {next_sequence_++,
                    call.count,
                    call.root,
                    static_cast<std::uint8_t>(call.operation),
                    static_cast<std::uint8_t>(call.dtype),
                    static_cast<std::uint8_t>(call.op),
                    0};
    queue_.push_back(queued);
    touch();
    guarded([&] { advance(); });
    return queued;
  }

  bool test(QueuedCall& queued) {
    if (queued.finished) return true;
    const std::lock_guard lock(runtime_.mutex);
    if (queued.finished) return true;
    throw_if_failed();
    touch();
    guarded([&] { advance(); });
    return queued.finished;
  }

  void wait(QueuedCall& queued, Deadline deadline) {
    const auto start = Clock::now();
    auto next_look = start + std::chrono::milliseconds(250);
    waiters_.fetch_add(1);
    struct Leave {
      std::atomic<int>& waiters;
      ~Leave() { waiters.fetch_sub(1); }
    } const leave{waiters_};
    while (!queued.finished) {
      {
        const std::lock_guard lock(runtime_.mutex);
        if (queued.finished) break;
        throw_if_failed();
        touch();
        bool moved = false;
        guarded([&] { moved = advance(); });
        if (moved) continue;
        if (deadline.passed()) guarded([&] { throw_timeout(queued, seconds_since(start)); });
      }
      const auto now = Clock::now();
      if (now >= next_look) {
        next_look = now + std::chrono::milliseconds(250);
        if (const auto text = store_.try_get(prefix_ + "/abort")) {
          const std::lock_guard lock(runtime_.mutex);
          guarded([&] {
            throw Error(ErrorCode::aborted, *text)
                .at_rank(rank_)
                .in_operation(describe(queued.call));
          });
        }
      }
      sched_yield();
    }
  }

  void abort(std::string_view reason) {
    store_.compare_set(prefix_ + "/abort", std::nullopt,
                       fmt::format("rank {} aborted: {}", rank_, reason));
  }

  void stop() {
    if (stopping_.exchange(true)) return;
    if (thread_.joinable()) thread_.join();
    const std::lock_guard lock(runtime_.mutex);
    if (queue_.empty() && !failure_) {
      MPI_Comm_free(&data_);
      MPI_Comm_free(&control_);
    } else {
      runtime_.failed = true;  // requests are still out: MPI_Finalize would wait for them
    }
    if (!failure_)
      failure_ = Error(ErrorCode::aborted, "the Communicator was destroyed").at_rank(rank_);
    queue_.clear();
  }

  CommunicatorStatistics statistics() const {
    const std::lock_guard lock(runtime_.mutex);
    return statistics_;
  }

 private:
  void touch() { last_driven_ = Clock::now().time_since_epoch().count(); }
  void throw_if_failed() const {
    if (failure_) throw Error(*failure_);
  }

  template <typename Body>
  void guarded(Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      if (!failure_) failure_ = error;
      runtime_.failed = true;
      // MPI may still write into the buffers of requests that are out: they stay in memory.
      for (auto& queued : queue_) abandoned_.push_back(std::move(queued));
      queue_.clear();
      throw Error(*failure_);
    }
  }

  // The head call by one stage, if it can; true when something moved.
  bool advance() {
    if (queue_.empty()) return false;
    QueuedCall& head = *queue_.front();
    switch (head.stage) {
      case QueuedCall::Stage::queued:
        post_cards(head);
        head.stage = QueuedCall::Stage::cards;
        return true;
      case QueuedCall::Stage::cards:
        if (!all_done(head.card_requests)) return false;
        check_cards(head);
        start_data(head);
        return true;
      case QueuedCall::Stage::exchange:
        if (!all_done(head.requests)) return false;
        finish_exchange(head);
        return true;
      case QueuedCall::Stage::gather:
        if (!all_done(head.requests)) return false;
        finish(head);
        return true;
      case QueuedCall::Stage::done:
        break;
    }
    return false;
  }

  static bool all_done(std::vector<MPI_Request>& requests) {
    int done = 0;
    check_mpi(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        "MPI_Testall");
    return done != 0;
  }

  void post_cards(QueuedCall& q) {
    constexpr int kTag = 1;
    q.cards.assign(static_cast<std::size_t>(size_), q.card);
    for (int pass = 0; pass < 2; ++pass)
      for (int peer = 0; peer < size_; ++peer) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (peer != rank_ && pass == 0)
          check_mpi(MPI_Irecv(&q.cards[static_cast<std::size_t>(peer)], sizeof(Card), MPI_BYTE,
                              peer, kTag, control_, &request),
                    "MPI_Irecv");
        if (peer != rank_ && pass == 1)
          check_mpi(MPI_Isend(&q.card, sizeof(Card), MPI_BYTE, peer, kTag, control_, &request),
                    "MPI_Isend");
        q.card_requests.push_back(request);
      }
  }

  void check_cards(const QueuedCall& q) {
    for (int peer = 0; peer < size_; ++peer) {
      const Card& theirs = q.cards[static_cast<std::size_t>(peer)];
      Card own = q.card;
      if (!q.call.reduces()) own.op = theirs.op;
      if (theirs == own) continue;
      throw Error(ErrorCode::mismatch,
                  fmt::format("ranks called different operations: rank {} called {}, rank {} "
                              "called {}",
                              rank_, describe(q.card), peer, describe(theirs)),
                  "call the same operations in the same order on every rank")
          .at_rank(rank_)
          .with_peer(peer)
          .in_operation(fmt::format("{} (#{})", describe(q.card), q.card.sequence));
    }
  }

  static bool reduced_by_mpi(const Call& call) {
    if (call.operation != Operation::all_reduce) return false;
    if (call.dtype == DType::bf16 || call.dtype == DType::f16) return false;
    const bool extreme = call.op == ReduceOp::min || call.op == ReduceOp::max;
    return !(extreme && is_floating(call.dtype));
  }

  void start_data(QueuedCall& q) {
    const Call& c = q.call;
    const int count = static_cast<int>(c.count);
    const MPI_Datatype type = type_of(c.dtype);
    if (c.operation == Operation::barrier || c.count == 0) return finish(q);
    if (c.reduces() && !reduced_by_mpi(c)) return start_exchange(q);
    MPI_Request request = MPI_REQUEST_NULL;
    if (c.operation == Operation::all_reduce) {
      const MPI_Op op = c.op == ReduceOp::prod  ? MPI_PROD
                        : c.op == ReduceOp::min ? MPI_MIN
                        : c.op == ReduceOp::max ? MPI_MAX
                                                : MPI_SUM;
      check_mpi(MPI_Iallreduce(c.send == c.recv ? MPI_IN_PLACE : c.send, c.recv, count, type, op,
                               data_, &request),
                "MPI_Iallreduce");
    } else if (c.operation == Operation::all_gather) {
      const auto* own = static_cast<std::byte*>(c.recv) + rank_ * c.send_bytes(size_);
      check_mpi(MPI_Iallgather(c.send == own ? MPI_IN_PLACE : c.send, count, type, c.recv, count,
                               type, data_, &request),
                "MPI_Iallgather");
    } else {
      check_mpi(MPI_Ibcast(c.recv, count, type, c.root, data_, &request), "MPI_Ibcast");
    }
    q.requests = {request};
    q.stage = QueuedCall::Stage::gather;
  }

  Range part(const Call& c, int peer) const {
    if (c.operation == Operation::reduce_scatter) return {peer * c.count, (peer + 1) * c.count};
    return shard(c.count, size_, peer, 64);
  }

  // Every rank gets its part of everybody's buffer, in rank order.
  void start_exchange(QueuedCall& q) {
    const Call& c = q.call;
    const Range mine = part(c, rank_);
    q.scratch.resize(static_cast<std::size_t>(mine.size() * size_) * size_of(c.dtype));
    for (int peer = 0; peer < size_; ++peer) {
      const Range theirs = part(c, peer);
      q.own_counts.push_back(static_cast<int>(theirs.size()));
      q.own_offsets.push_back(static_cast<int>(theirs.begin));
      q.counts.push_back(static_cast<int>(mine.size()));
      q.offsets.push_back(static_cast<int>(mine.size() * peer));
    }
    MPI_Request request = MPI_REQUEST_NULL;
    const MPI_Datatype type = type_of(c.dtype);
    check_mpi(
        MPI_Ialltoallv(c.send, q.own_counts.data(), q.own_offsets.data(), type, q.scratch.data(),
                       q.counts.data(), q.offsets.data(), type, data_, &request),
        "MPI_Ialltoallv");
    q.requests = {request};
    q.stage = QueuedCall::Stage::exchange;
  }

  void finish_exchange(QueuedCall& q) {
    const Call& c = q.call;
    const Range mine = part(c, rank_);
    const auto element = static_cast<std::int64_t>(size_of(c.dtype));
    std::vector<const void*> sources;
    for (int peer = 0; peer < size_; ++peer)
      sources.push_back(q.scratch.data() + peer * mine.size() * element);
    const bool everywhere = c.operation == Operation::all_reduce;
    auto* to = static_cast<std::byte*>(c.recv) + (everywhere ? mine.begin * element : 0);
    reduction_->reduce(kernel_operation(c.op), c.dtype, sources, to, mine.size(), Stream{});
    if (c.op == ReduceOp::avg) reduction_->scale(c.dtype, to, 1.0 / size_, mine.size(), Stream{});
    if (!everywhere) return finish(q);
    MPI_Request request = MPI_REQUEST_NULL;
    const MPI_Datatype type = type_of(c.dtype);
    check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, type, c.recv, q.own_counts.data(),
                              q.own_offsets.data(), type, data_, &request),
              "MPI_Iallgatherv");
    q.requests = {request};
    q.stage = QueuedCall::Stage::gather;
  }

  void finish(QueuedCall& q) {
    if (q.call.op == ReduceOp::avg && reduced_by_mpi(q.call) && q.call.count > 0)
      reduction_->scale(q.call.dtype, q.call.recv, 1.0 / size_, q.call.count, Stream{});
    q.stage = QueuedCall::Stage::done;
    ++statistics_.operations;
    statistics_.by_progress_thread += background_;
    q.finished = true;
    queue_.pop_front();
  }

  void throw_timeout(const QueuedCall& waited_for, double waited) {
    QueuedCall& head = *queue_.front();
    std::vector<int> missing;
    for (int peer = 0; head.stage == QueuedCall::Stage::cards && peer < size_; ++peer) {
      int done = 1;
      MPI_Test(&head.card_requests[static_cast<std::size_t>(peer)], &done, MPI_STATUS_IGNORE);
      if (!done) missing.push_back(peer);
    }
    throw Error(
        ErrorCode::timeout,
        fmt::format("{} (#{}) did not finish within {:.1f} s; {}", describe(head.card),
                    head.card.sequence, waited,
                    missing.empty() ? std::string("every rank called it, the data did not arrive")
                                    : fmt::format("missing: rank(s) {}", fmt::join(missing, ", "))),
        "see what those ranks do, or raise SHOAL_DEADLINE_S")
        .at_rank(rank_)
        .with_peer(missing.empty() ? -1 : missing.front())
        .in_operation(describe(waited_for.call));
  }

  void progress_loop() {
    while (!stopping_) {
      std::this_thread::sleep_for(kNap);
      const auto undriven = Clock::now().time_since_epoch() - Clock::duration(last_driven_.load());
      if (waiters_ > 0 || undriven < kTakeOverAfter) continue;
      const std::unique_lock lock(runtime_.mutex, std::try_to_lock);
      if (!lock || queue_.empty() || failure_) continue;
      background_ = true;
      try {
        guarded([&] {
          while (waiters_ == 0 && advance()) {
          }
        });
      } catch (const Error&) {  // kept in failure_
      }
      background_ = false;
    }
  }

  const int rank_, size_;
  Store& store_;
  const std::string prefix_;
  const double deadline_seconds_;
  MpiRuntime& runtime_;
  std::unique_ptr<kernels::ReductionKernels> reduction_;
  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
  // Below: under runtime_.mutex.
  std::deque<std::shared_ptr<QueuedCall>> queue_;
  std::vector<std::shared_ptr<QueuedCall>> abandoned_;
  std::uint64_t next_sequence_ = 1;
  std::optional<Error> failure_;
  CommunicatorStatistics statistics_;
  bool background_ = false;

  std::atomic<int> waiters_{0};
  std::atomic<Clock::rep> last_driven_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class MpiWork final : public Work {
 public:
  MpiWork(std::shared_ptr<MpiEngine> engine, std::shared_ptr<QueuedCall> queued)
      : engine_(std::move(engine)), queued_(std::move(queued)) {}
  bool test() override { return engine_->test(*queued_); }
  void wait(Deadline deadline) override { engine_->wait(*queued_, deadline); }
  double default_deadline_seconds() const override { return engine_->deadline_seconds(); }

 private:
  std::shared_ptr<MpiEngine> engine_;
  std::shared_ptr<QueuedCall> queued_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiEngine> engine, const CommunicatorOptions& options)
      : engine_(std::move(engine)), memory_(make_counted_host_memory(options.counted_by)) {}
  ~MpiCommunicator() override { engine_->stop(); }

  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  std::string backend() const override { return "mpi"; }
  MemoryResource& memory_resource() override { return *memory_; }
  CommunicatorStatistics statistics() const override { return engine_->statistics(); }

  std::unique_ptr<Work> all_reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                                   Reduction op, Stream stream) override {
    return submit({Operation::all_reduce, send, recv, count, dtype, op.op, -1}, stream);
  }
  std::unique_ptr<Work> reduce_scatter(const void* send, void* recv, std::int64_t recv_count,
                                       DType dtype, Reduction op, Stream stream) override {
    return submit({Operation::reduce_scatter, send, recv, recv_count, dtype, op.op, -1}, stream);
  }
  std::unique_ptr<Work> all_gather(const void* send, void* recv, std::int64_t send_count,
                                   DType dtype, Stream stream) override {
    return submit({Operation::all_gather, send, recv, send_count, dtype, ReduceOp::sum, -1},
                  stream);
  }
  std::unique_ptr<Work> broadcast(void* data, std::int64_t count, DType dtype, int root,
                                  Stream stream) override {
    return submit({Operation::broadcast, data, data, count, dtype, ReduceOp::sum, root}, stream);
  }
  std::unique_ptr<Work> barrier(Stream stream) override { return submit({}, stream); }
  void abort(std::string_view reason) override { engine_->abort(reason); }

 private:
  std::unique_ptr<Work> submit(const Call& call, Stream stream) {
    check_call(call, rank(), size(), stream);
    return std::make_unique<MpiWork>(engine_, engine_->submit(call));
  }
  std::shared_ptr<MpiEngine> engine_;
  std::unique_ptr<MemoryResource> memory_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Store& store,
                                                    const CommunicatorOptions& options) {
  if (!options.algorithm.empty())
    throw_error(ErrorCode::invalid_argument,
                "algorithm '{}' is native's; the mpi backend leaves the choice to MPI",
                options.algorithm);
  const auto generation = store.add(fmt::format("shoal/mpi/generation/{}", world.rank), 1);
  auto engine = std::make_shared<MpiEngine>(world, store, fmt::format("shoal/mpi/{}", generation),
                                            options.deadline_seconds);
  return std::make_unique<MpiCommunicator>(std::move(engine), options);
}

}  // namespace shoal::collectives
