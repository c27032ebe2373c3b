#include "shoal/collectives/backend/net/net_engine.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "shoal/collectives/backend/net/scratch_memory.h"
#include "shoal/collectives/transport/doorbell.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::net {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kLongestNap{2000}, kIdlePoll{5000};
constexpr auto kCheckEvery = milliseconds(5);
// Time to poll before sleeping, with and without a core for each rank. With most providers a poll
// is a system call or two, so waiters yield between polls.
constexpr auto kLookRoomy = microseconds(200), kLookCrowded = microseconds(50);
constexpr int kSleepMicroseconds = 1000, kPollMicroseconds = 50, kDozeMilliseconds = 1;
// Bytes of local work between two polls of the network.
constexpr std::int64_t kBudgetBytes = std::int64_t{1} << 20;
// Limits for each channel. More in flight would not use the network better, and would let a slow
// rank fall further behind.
constexpr std::size_t kMostRunning = 16;
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

}  // namespace

std::string NetOperation::name() const {
  if (call.outer) return fmt::format("{} (#{})", describe(call), call.outer->number);
  Signature shown = signature_of(call);
  if (is_message(call.operation)) shown.root = (*members)[static_cast<std::size_t>(shown.root)];
  return fmt::format("{} (#{})", describe(shown), number);
}

std::string NetOperation::missing(std::vector<int>& peers) const {
  return execution ? execution->missing(peers) : "it has not started";
}

// For a send or recv, `signature` describes the send on both ranks, so that they compare equal. The
// flight recorder gets this rank's own call instead.
void NetOperation::note_submitted() {
  if (is_message(call.operation))
    ticket_ = flight->message(number, signature_of(call));
  else
    InFlight::note_submitted();
}
void NetOperation::note_finished() {
  if (is_message(call.operation))
    flight->message_finished(ticket_);
  else
    InFlight::note_finished();
}

NetEngine::NetEngine(std::unique_ptr<transport::Endpoint> endpoint,
                     std::unique_ptr<transport::ControlLinks> control, const Options& options)
    : EngineBase("native", options.deadline_seconds, kLongestNap,
                 endpoint->must_be_polled() ? kIdlePoll : microseconds{}),
      options_(options),
      rank_(endpoint->rank()),
      size_(endpoint->size()),
      names_{rank_, size_, options.hosts},
      endpoint_name_(endpoint->name()),
      device_memory_problem_(endpoint->device_memory_problem()),
      eager_bytes_(endpoint->eager_bytes()),
      polled_(endpoint->must_be_polled()),
      host_(make_host_memory()),
      scratch_(std::make_unique<ScratchMemory>(*this, *host_)),
      pool_(std::make_unique<PoolMemory>(*scratch_)),
      reduction_(kernels::make_cpu_reduction()),
      control_(std::move(control)),
      endpoint_(std::move(endpoint)),
      patience_(transport::suitable_spins(options.ranks_on_host) > 0 ? kLookRoomy : kLookCrowded) {
  progress_.start();
}

NetEngine::~NetEngine() {
  stop();
  // Destroys the users of pool memory first, then the pool. When the pool returns its regions, it
  // uses members that must still exist.
  idle_.clear();
  pool_.reset();
}

std::unique_lock<std::mutex> NetEngine::enter() {
  entering_.fetch_add(1);
  std::unique_lock lock(mutex_);
  entering_.fetch_sub(1);
  return lock;
}

// `name` costs a few allocations, so it is called only if there is news.
template <typename Name>
void NetEngine::fail_on_news(Name&& name) {
  if (control_ && control_->has_news())
    fail(with_cause(Error(ErrorCode::peer_lost, "a rank is gone").in_operation(name())));
}

void NetEngine::submit(const std::shared_ptr<Channel>& channel,
                       std::shared_ptr<NetOperation> operation) {
  {
    const auto lock = enter();
    submit_locked(channel, std::move(operation));
  }
  progress_.submitted();
}

void NetEngine::submit_locked(const std::shared_ptr<Channel>& channel,
                              std::shared_ptr<NetOperation> operation) {
  throw_if_failed();
  drop_retired();
  fail_on_news([&] { return operation->name(); });
  note_call(*operation);
  channel->waiting.push_back(std::move(operation));
  progress_.count_in_flight(1);
  progress_.driven();
  if (!channel->active) {
    channel->active = true;
    active_.push_back(channel);
  }
  guarded([&] { start_waiting(*channel); });
}

void NetEngine::submit(std::shared_ptr<Task> task) {
  {
    const auto lock = enter();
    throw_if_failed();
    drop_retired();
    fail_on_news([&] { return task->name(); });
    note_call(*task);
    // Throws if an earlier message belongs to another operation.
    guarded([&] { endpoint_->begin(task->key, task->signature); });
    progress_.count_in_flight(1);
    progress_.driven();
    tasks_.push_back(std::move(task));
  }
  progress_.submitted();
}

void NetEngine::note_call(InFlight& what) {
  if (what.flight) what.note_submitted();
  // Reports only calls of the group of all ranks, whose numbers rank 0 has too.
  if (control_ && what.key.group == kWorldGroup) control_->called(what.number, what.signature);
}

bool NetEngine::test(InFlight& what) {
  if (what.done()) return true;
  const double waited = seconds_since_first(what.first_test_);
  const bool late = waited > deadline_seconds_;
  const auto lock = late ? enter() : std::unique_lock(mutex_, std::try_to_lock);
  if (!lock) return false;  // another thread is driving
  if (what.done()) return true;
  throw_if_failed();
  progress_.driven();
  bool moved = true;
  // Bounded, because a caller of test() has other work to do.
  for (int steps = 0; steps < 4 && moved && !what.done(); ++steps) moved = advance();
  if (what.done()) return true;
  check_news();
  if (late) fail(timeout_error(what, waited));
  return false;
}

// Marks the operation that a caller waits for, which errors then name.
class NetEngine::Awaiting {
 public:
  Awaiting(const InFlight*& awaited, const InFlight& what) : awaited_(awaited) { awaited_ = &what; }
  ~Awaiting() { awaited_ = nullptr; }
  Awaiting(const Awaiting&) = delete;
  Awaiting& operator=(const Awaiting&) = delete;

 private:
  const InFlight*& awaited_;
};

void NetEngine::wait(InFlight& what, Deadline deadline) {
  if (what.done()) return;
  const auto start = Clock::now();
  progress_.waiters.fetch_add(1);
  auto lock = enter();
  struct Leave {
    ProgressThread& progress;
    ~Leave() {
      progress.driven();
      progress.waiters.fetch_sub(1);
    }
  } const leave{progress_};
  for (std::uint32_t looks = 0, sleeps = 0; !what.done(); ++looks) {
    throw_if_failed();
    const Awaiting awaiting(awaited_, what);
    const bool moved = advance();
    const auto now = Clock::now();
    if (moved) {
      patience_.moved(now);
      sleeps = 0;
    }
    const bool spent = !moved && patience_.spent(now);
    // Checks even while there is progress, because deadlines and news concern everything in flight.
    if ((spent || looks % 64 == 0) && !what.done()) {
      check_news();
      if (now >= deadline.time())
        fail(timeout_error(what, std::chrono::duration<double>(now - start).count()));
    }
    // Gives way only after a poll of its own; otherwise two waiters would just pass the lock
    // around.
    if (entering_.load() > 0) {
      lock.unlock();
      std::this_thread::yield();
      lock = enter();
      continue;
    }
    if (moved) continue;
    if (spent)
      sleep(sleeps++);
    else
      std::this_thread::yield();
  }
}

void NetEngine::sleep(std::uint32_t sleeps) {
  // If tasks wait only for ranks of this host, the network would wake this thread too late or
  // never. If tasks wait for both, the thread sleeps on the network and polls the host.
  if (tasks_.size() == 1 && active_.empty() && !endpoint_->sending() &&
      tasks_.front()->doze(kDozeMilliseconds))
    return;
  const bool poll = std::ranges::any_of(tasks_, [](const auto& task) { return task->must_poll(); });
  // The longer the host's ranks have kept this thread waiting, the less often it polls.
  endpoint_->sleep(
      poll ? std::min(kSleepMicroseconds, kPollMicroseconds << std::min(sleeps / 16, 5u))
           : kSleepMicroseconds);
}

void NetEngine::abort(std::string_view reason) {
  if (control_) control_->tell(transport::ControlNews::Kind::aborted, reason);
  const auto lock = enter();
  if (failure_) return;
  close(Error(ErrorCode::aborted, fmt::format("rank {} aborted: {}", rank_, reason))
            .at_rank(rank_)
            .with_peer(rank_));
  write_down(*failure_);
}

void NetEngine::record(const std::shared_ptr<FlightRecorder>& recorder) {
  const auto lock = enter();
  std::erase_if(recorders_, [](const auto& one) { return one.expired(); });
  recorders_.push_back(recorder);
}

void NetEngine::write_down(const Error& error) {
  for (const auto& one : recorders_)
    if (const auto recorder = one.lock()) recorder->failed(error.what(), blame_);
}

void NetEngine::leave() {
  if (users_.fetch_sub(1) == 1) stop();
}

void NetEngine::stop() {
  if (stopping_.exchange(true)) return;
  progress_.end();
  auto lock = enter();
  linger();
  if (!failure_) close(Error(ErrorCode::aborted, "the Communicator was destroyed").at_rank(rank_));
  control_.reset();
}

// Other ranks may still need data that this rank has sent. Closing its Endpoint could discard that
// data.
void NetEngine::linger() {
  if (!control_ || failure_) return;
  control_->leave();
  if (progress_.in_flight() > 0) return;
  const auto until = Deadline::in_seconds(std::min(deadlines::kLinger, deadline_seconds()));
  try {
    while (!control_->all_left() && !control_->news() && !until.passed())
      if (!endpoint_->progress()) endpoint_->sleep(kSleepMicroseconds);
  } catch (const Error& error) {
    // Another rank closed first. This rank has everything it needs.
    log::debug("rank {} leaves: {}", rank_, error.what());
  }
}

std::unique_ptr<Registration> NetEngine::register_memory(void* data, std::int64_t bytes,
                                                         bool device) {
  class Kept final : public Registration {
   public:
    Kept(std::weak_ptr<NetEngine> engine, std::uint64_t number, bool device)
        : engine_(std::move(engine)), number_(number), device_(device) {}
    ~Kept() override {
      const auto engine = engine_.lock();
      if (engine && device_)
        engine->drop_region(number_);
      else if (engine)
        engine->retire_region(number_);
    }

   private:
    std::weak_ptr<NetEngine> engine_;
    std::uint64_t number_;
    bool device_;
  };
  const auto lock = enter();
  return std::make_unique<Kept>(weak_from_this(), hold_region(data, bytes, device), device);
}

void NetEngine::drop_region(std::uint64_t region) {
  const auto lock = enter();
  regions_.erase(region);
}

std::uint64_t NetEngine::hold_region(void* data, std::int64_t bytes, bool device) {
  drop_retired();
  if (!endpoint_) return 0;
  regions_[++next_region_] = device ? endpoint_->register_device_memory(data, bytes)
                                    : endpoint_->register_memory(data, bytes);
  return next_region_;
}

void NetEngine::retire_region(std::uint64_t region) noexcept {
  const std::lock_guard lock(retired_mutex_);
  retired_.push_back(region);
  any_retired_.store(true);
}

void NetEngine::drop_retired() {
  if (!any_retired_.load()) return;
  const std::lock_guard lock(retired_mutex_);
  for (const std::uint64_t region : retired_) regions_.erase(region);
  retired_.clear();
  any_retired_.store(false);
}

transport::EndpointStatistics NetEngine::endpoint_statistics() const {
  const std::lock_guard lock(mutex_);
  return endpoint_ ? endpoint_->statistics() : last_statistics_;
}

std::uint32_t NetEngine::next_group() const {
  const std::lock_guard lock(mutex_);
  return next_group_;
}

void NetEngine::set_next_group(std::uint32_t next) {
  const auto lock = enter();
  next_group_ = std::max(next_group_, next);
}

bool NetEngine::advance() {
  if (!endpoint_) return false;
  bool moved = false;
  guarded([&] {
    moved = endpoint_->progress();
    std::int64_t budget = kBudgetBytes;
    for (std::size_t i = 0; i < active_.size();) {
      const std::shared_ptr<Channel> channel = active_[i];
      moved = run_channel(*channel, budget) || moved;
      if (channel->waiting.empty() && channel->running.empty()) {
        channel->active = false;
        active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    for (std::size_t i = 0; i < tasks_.size();) {
      moved = tasks_[i]->advance(background_) || moved;
      if (tasks_[i]->done()) {
        endpoint_->end(tasks_[i]->key);
        if (tasks_[i]->flight) tasks_[i]->note_finished();
        tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(i));
        progress_.count_in_flight(-1);
      } else {
        ++i;
      }
    }
    if (moved) peer_left_since_ = {};
  });
  return moved;
}

bool NetEngine::run_channel(Channel& channel, std::int64_t& budget) {
  bool moved = false;
  const ExecutionContext context{*endpoint_, *reduction_, *pool_};
  for (std::size_t i = 0; i < channel.running.size();) {
    const std::shared_ptr<NetOperation> operation = channel.running[i];
    Execution& execution = *operation->execution;
    moved = execution.reap() || moved;
    moved = execution.run(context, budget) || moved;
    if (!execution.finished()) {
      ++i;
      continue;
    }
    channel.running.erase(channel.running.begin() + static_cast<std::ptrdiff_t>(i));
    finish(channel, *operation);
    moved = true;
  }
  return start_waiting(channel) || moved;
}

bool NetEngine::start_waiting(Channel& channel) {
  bool started = false;
  while (!channel.waiting.empty()) {
    const std::shared_ptr<NetOperation> next = channel.waiting.front();
    if (!channel.running.empty() &&
        (channel.running.size() >= kMostRunning ||
         channel.bytes_running + next->bytes > kMostBytes ||
         next->number - channel.running.front()->number >= channel.reach))
      break;
    channel.waiting.pop_front();
    start(channel, next);
    started = true;
  }
  return started;
}

void NetEngine::start(Channel& channel, const std::shared_ptr<NetOperation>& operation) {
  if (idle_.empty()) idle_.push_back(std::make_unique<Execution>());
  operation->execution = std::move(idle_.back());
  idle_.pop_back();
  channel.running.push_back(operation);
  channel.bytes_running += operation->bytes;
  endpoint_->begin(operation->key, operation->signature);
  const ExecutionContext context{*endpoint_, *reduction_, *pool_};
  operation->execution->start(context, operation->program, operation->call, operation->key,
                              *operation->members);
  std::int64_t messages_only = 0;
  operation->execution->run(context, messages_only);
}

void NetEngine::finish(Channel& channel, NetOperation& operation) {
  endpoint_->end(operation.key);
  operation.execution->finish();
  idle_.push_back(std::move(operation.execution));
  operation.program.reset();
  channel.bytes_running -= operation.bytes;
  if (operation.flight) static_cast<InFlight&>(operation).note_finished();
  if (!operation.internal) {
    // In this order, so that a reader of both never sees an operation without its thread.
    if (background_) channel.by_progress_thread.fetch_add(1);
    channel.completed.fetch_add(1);
  }
  progress_.count_in_flight(-1);
  operation.finish();
}

void NetEngine::fail(const Error& first) {
  if (!failure_) {
    Error error(first);
    if (error.rank() < 0) error.at_rank(rank_);
    if (control_ && error.code() != ErrorCode::aborted)
      control_->tell(transport::ControlNews::Kind::failed, error.what(),
                     static_cast<std::uint32_t>(error.code()));
    close(error);
    write_down(error);
  }
  throw Error(*failure_);
}

void NetEngine::close(const Error& error) {
  failure_ = error;
  if (endpoint_) last_statistics_ = endpoint_->statistics();
  // If all ranks know the reason or have their data, pending sends are not awaited: their receivers
  // may be gone.
  const bool known = error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::timeout ||
                     (control_ && (control_->has_news() || control_->all_left()));
  if (endpoint_ && known) endpoint_->abandon();
  // Closes the Endpoint first. From here on no buffer is touched.
  regions_.clear();
  endpoint_.reset();
  for (const auto& channel : active_) {
    channel->waiting.clear();
    channel->running.clear();
    channel->bytes_running = 0;
    channel->active = false;
  }
  active_.clear();
  for (const auto& task : tasks_) task->cancel(error.message());
  tasks_.clear();
  progress_.none_in_flight();
}

void NetEngine::check_news() {
  const auto now = Clock::now();
  if (!control_ || now < next_check_) return;
  next_check_ = now + kCheckEvery;
  fail_on_news([] { return std::string(); });

  std::vector<int> peers;
  std::string name;
  for (const auto& channel : active_)
    for (const auto& operation : channel->running) {
      (void)operation->missing(peers);
      if (name.empty()) name = operation->name();
    }
  const auto gone = std::ranges::find_if(peers, [this](int peer) { return control_->left(peer); });
  if (gone == peers.end()) {
    peer_left_since_ = {};
    return;
  }
  if (peer_left_since_ == Clock::time_point{}) peer_left_since_ = now;
  if (now - peer_left_since_ < deadlines::kLeftGrace) return;
  fail(Error(ErrorCode::peer_lost, fmt::format("rank {} left the group", *gone),
             "look at that rank's own output for the cause")
           .at_rank(rank_)
           .with_peer(*gone)
           .in_operation(name));
}

void NetEngine::if_unlocked(const std::function<void()>& body) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) body();
}

template <typename Body>
void NetEngine::in_background(Body&& body) {
  background_ = true;
  try {
    body();
  } catch (const std::exception& error) {
    // failure_ keeps the error; the next call on any thread throws it.
    log::debug("rank {}, progress thread: {}", rank_, error.what());
  }
  background_ = false;
}

// Sends of completed operations may still need progress. EFA and others move data only while
// polled, and the ranks that wait for the data cannot poll this rank's transport. The same holds
// for acknowledgements of data received from them.
bool NetEngine::idle() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return true;
  if (!endpoint_ || failure_ || (!polled_ && !endpoint_->sending())) return false;
  in_background([&] { advance(); });
  return endpoint_ && endpoint_->sending();
}

bool NetEngine::drive() {
  std::uint32_t idle = 0, moves = 0;
  while (progress_.undisturbed() && entering_.load() == 0) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !endpoint_) return false;
    in_background([&] {
      idle = advance() ? 0 : idle + 1;
      if (idle > 0 || ++moves % 64 == 0) check_news();
      if (idle > 0) sleep(idle);
    });
  }
  return true;
}

}  // namespace shoal::collectives::net
