#include "shoal/torch/lane.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <c10/util/Exception.h>
#include <unistd.h>

#include "shoal/collectives/backend/departure.h"
#include "shoal/collectives/backend/movable_deadline.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/torch/allocator.h"
#include "shoal/torch/work.h"

namespace shoal::pytorch {
namespace {

constexpr int kSpins = 4000;
// If other processes compete for the core, a thread that yields resumes late; a thread that sleeps
// resumes soon.
constexpr std::chrono::microseconds kYields{100};
constexpr std::chrono::microseconds kShortestNap{20}, kLongestNap{1000};
// Interval at which a completer polls Works that it does not drive. It grows while no Work ends.
constexpr std::chrono::microseconds kLook{100}, kLongestLook{1000};
// A completer drives for this long before it polls other Works. While messages may need progress,
// every thread drives for kTurnBesideMessages at a time.
constexpr std::chrono::microseconds kTurn{5000}, kTurnBesideMessages{200};

Deadline after(std::chrono::microseconds time) {
  return Deadline::in_seconds(std::chrono::duration<double>(time).count());
}

// Spinning helps only if each rank of the host has a core of its own.
int spins_for(int ranks) {
  return static_cast<int>(std::thread::hardware_concurrency()) >= ranks ? kSpins : 0;
}

// Set in a thread that completes a Lane's followed Works.
struct Completer {
  Lane* lane = nullptr;
  bool in_callback = false;  // a callback called follow(), so it may wait for that Work
};
thread_local Completer here;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Patience::pause() {
  ++round_;
  if (round_ <= spins_) return relax();
  const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began_);
  if (waited < kYields) return std::this_thread::yield();
  std::this_thread::sleep_for(std::clamp(waited / 16, kShortestNap, kLongestNap));
}

Lane::Lane(std::shared_ptr<collectives::Communicator> collectives,
           std::shared_ptr<collectives::Communicator> messages)
    : owner_(::getpid()),
      spins_(spins_for(collectives->size())),
      collectives_(std::move(collectives)),
      messages_(std::move(messages)) {
  if (messages_) mailbox_ = std::make_unique<Mailbox>(*messages_);
}

Lane::Lane(std::shared_ptr<collectives::Communicator> collectives,
           std::shared_ptr<collectives::Communicator> messages,
           std::shared_ptr<DeviceStreams> device)
    : owner_(::getpid()),
      spins_(spins_for(collectives->size())),
      device_(std::move(device)),
      of_streams_(collectives->can_capture()),
      collectives_(std::move(collectives)),
      messages_(std::move(messages)) {}

Lane::~Lane() { close(false); }

Lane::Hold::Hold(Lane& lane) : lock_(lane.mutex_, std::try_to_lock) {
  if (lock_) return;
  ++lane.wanted_;
  {
    const std::lock_guard lock(lane.driven_mutex_);
    if (collectives::NodeWork* const driven = lane.driven_) driven->interrupt();
  }
  lock_.lock();
  --lane.wanted_;
}

bool Lane::drive(collectives::NodeWork& call, Driving& driving) {
  const auto announce = [this](collectives::NodeWork* work) {
    const std::lock_guard lock(driven_mutex_);
    driven_ = work;
  };
  struct Leave {
    const decltype(announce)& tell;
    ~Leave() { tell(nullptr); }
  };
  driving.waited = true;
  announce(&call);
  const Leave leave{announce};
  Deadline until = driving.until;
  if (mailbox_ && !mailbox_->idle())
    until = std::min(until, after(kTurnBesideMessages),
                     [](const Deadline& a, const Deadline& b) { return a.time() < b.time(); });
  return call.drive(until, wanted_, driving.may_spin);
}

void Lane::give_way() const {
  while (wanted_.load() > 0) std::this_thread::yield();
}

bool Lane::is_forked() const { return ::getpid() != owner_; }

void Lane::check_process() const {
  if (is_forked())
    throw Error(ErrorCode::invalid_argument, "a forked process uses its parent's process group",
                "make process groups after the fork, or start the process with spawn");
}

void Lane::check_open() const {
  if (ended_) std::rethrow_exception(ended_);
}

double Lane::set_deadline_seconds(double seconds) {
  if (is_forked()) return seconds;
  const Hold hold(*this);
  if (ended_ || collectives_->size() == 1) return seconds;
  if (auto* const movable = dynamic_cast<collectives::MovableDeadline*>(collectives_.get()))
    movable->set_deadline_seconds(seconds);
  return deadline_seconds();
}

void Lane::call(const std::function<void()>& body, bool is_message) {
  try {
    check_process();
    const Hold hold(*this);
    check_open();
    if (device_)
      device_->follow_current(is_message && messages_ != collectives_ ? device_->messages()
                                                                      : device_->calls());
    body();
  } catch (...) {
    std::rethrow_exception(failure());
  }
}

void Lane::begin(c10::intrusive_ptr<PolledWork> work, const std::function<void()>& body,
                 bool is_message) {
  c10::intrusive_ptr<PolledWork> oldest;
  const bool lands = of_streams_ && !is_message;
  call(
      [&] {
        body();
        if (!kept_.empty()) oldest = kept_.front();
        kept_.push_back(work);
        if (lands) work->land();
      },
      is_message);
  // If the caller dropped the oldest Work without waiting, this poll ends that Work.
  if (oldest) oldest->poll(false);
  if (lands) follow(std::move(work));  // otherwise no host thread would notice its failure
}

std::exception_ptr Lane::failure(bool of_group) {
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout)
      error_ = c10d::ErrorType::TIMEOUT;
    else if (error.code() == ErrorCode::peer_lost)
      error_ = c10d::ErrorType::REMOTE_ERROR;
    else if (error.code() != ErrorCode::invalid_argument)
      error_ = c10d::ErrorType::COMM_ERROR;
    return translated(of_group ? ranks_->explained(error) : ranks_->in_job(error));
  } catch (...) {
    error_ = c10d::ErrorType::COMM_ERROR;
    return std::current_exception();
  }
}

void Lane::forget(PolledWork& work) {
  c10::intrusive_ptr<PolledWork> dropped;
  const Hold hold(*this);
  const auto found =
      std::ranges::find_if(kept_, [&](const auto& kept) { return kept.get() == &work; });
  if (found == kept_.end()) return;
  dropped = std::move(*found);
  kept_.erase(found);
}

void Lane::follow(c10::intrusive_ptr<PolledWork> work) {
  const std::lock_guard lock(followed_mutex_);
  if (stopping_) return;  // close() completes it
  followed_.push_back(std::move(work));
  if (here.lane == this && !here.in_callback) {
    here.in_callback = true;
    --free_completers_;
  }
  wake_completer();
}

void Lane::follow_copies() {
  const std::lock_guard lock(followed_mutex_);
  if (!stopping_) wake_completer();
}

void Lane::wake_completer() {
  if (free_completers_ == 0) {
    std::thread([lane = shared_from_this()] { lane->complete_followed(); }).detach();
    ++free_completers_;
  }
  followed_changed_.notify_one();
}

// Collectives end in order, so only the first one in flight is polled. The time-out of the next
// collective starts when that one becomes the first.
Lane::Works Lane::sweep(const Works& list) {
  Works ended;
  bool in_order = true;
  for (const auto& work : list) {
    if (work->is_ordered() && !in_order) continue;
    if (work->poll(true))
      ended.push_back(work);
    else if (work->is_ordered())
      in_order = false;
  }
  return ended;
}

void Lane::complete_followed() {
  here.lane = this;
  Works ended;
  const PolledWork* newest = nullptr;
  Clock::time_point changed;
  for (;;) {
    Works list;
    {
      std::unique_lock lock(followed_mutex_);
      std::erase_if(followed_, [&](const auto& work) {
        return std::ranges::find(ended, work) != ended.end();  // `ended` keeps the Works alive
                                                               // until the lock is released
      });
      if (std::exchange(here.in_callback, false)) {
        if (free_completers_ > 0) return;  // another one has taken over
        ++free_completers_;
      }
      if (!ended.empty()) {
        changed = Clock::now();
        lock.unlock();
        ended.clear();  // destroys their tensors before this thread waits
        lock.lock();
      }
      followed_changed_.wait(lock, [this] {
        return stopping_ || !followed_.empty() || (device_ && device_->keeps_copies());
      });
      if (stopping_) {
        --free_completers_;
        completer_ended_.notify_all();
        return;
      }
      list = followed_;
    }
    if (device_) device_->drop_ended();
    const PolledWork* const last = list.empty() ? nullptr : list.back().get();
    if (last != newest) changed = Clock::now();
    newest = last;
    ended = sweep(list);
    if (!ended.empty()) continue;
    Driving driving{after(kTurn), false};
    const bool can_drive = !list.empty() && !is_driven() &&
                           std::ranges::all_of(list, [](const auto& w) { return w->is_ordered(); });
    if (can_drive) list.front()->drive(driving);
    if (driving.waited)
      give_way();
    else
      std::this_thread::sleep_for(
          std::clamp<Clock::duration>((Clock::now() - changed) / 16, kLook, kLongestLook));
  }
}

// Does not wait for completers whose callbacks wait: close() fails what they wait for, and they end
// later. If this thread is a completer whose callback closes the group, it ends later too.
// Completers keep the Lane alive.
void Lane::stop_completers() {
  Works dropped;
  std::unique_lock lock(followed_mutex_);
  stopping_ = true;
  dropped = std::move(followed_);
  followed_changed_.notify_all();
  const int own = here.lane == this && !here.in_callback ? 1 : 0;
  completer_ended_.wait(lock, [&] { return free_completers_ == own; });
}

void Lane::abort(std::string_view reason) {
  if (is_forked()) return;
  const Hold hold(*this);
  if (ended_) return;
  collectives_->abort(reason);
  if (messages_ && messages_ != collectives_) messages_->abort(reason);
}

void Lane::drain() {
  const Deadline deadline = Deadline::in_seconds(deadlines::kInFlightEnds);
  Patience waiting = patience();
  while (!deadline.passed()) {
    Works kept;
    {
      const Hold hold(*this);
      kept.assign(kept_.begin(), kept_.end());
    }
    if (kept.empty()) return;
    if (sweep(kept).empty()) waiting.pause();
  }
}

void Lane::close(bool drain_first) {
  if (is_forked()) return;  // the communicators' threads exist only in the parent
  {
    const Hold hold(*this);
    if (ended_) return;
  }
  if (drain_first) drain();
  stop_completers();
  std::deque<c10::intrusive_ptr<PolledWork>> left;
  std::unique_ptr<Mailbox> mailbox;  // its tensors are destroyed without the mutex
  {
    const Hold hold(*this);
    if (ended_) return;
    ended_ = std::make_exception_ptr(
        Error(ErrorCode::aborted, "the process group was destroyed before this operation ended"));
    if (mailbox_) mailbox_->leave();
    messages_.reset();
    mailbox = std::move(mailbox_);
    withdraw_symmetric_memory(collectives_);
    // Tensors, such as DDP's buckets, may still keep the communicator.
    if (auto* const kept = dynamic_cast<collectives::Departure*>(collectives_.get())) kept->leave();
    collectives_.reset();
    left = std::move(kept_);
    kept_.clear();
  }
  for (const auto& work : left) work->poll(true);  // fails with `ended_`
  // Kept copies may hold tensors of allocateTensor(), and these tensors keep the streams alive.
  if (device_) device_->finish();
}

std::exception_ptr translated(const Error& error) {
  // Launchers and PyTorch's tests search the text for "timeout".
  const std::string text = error.code() == ErrorCode::timeout
                               ? fmt::format("Shoal's timeout passed: {}", error.what())
                               : error.what();
  try {
    if (error.code() == ErrorCode::invalid_argument) C10_THROW_ERROR(ValueError, text);
    if (error.code() == ErrorCode::timeout)
      throw TimedOut({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, text);
    C10_THROW_ERROR(DistBackendError, text);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace shoal::pytorch
