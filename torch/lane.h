// One group's communicators for host memory or for one device, shared by all threads that call the
// group.
//
// Only one thread at a time may use a Communicator, so a thread holds the Lane's mutex while it
// makes a call or tests a Work. A waiting thread drives its operation with the mutex held. It
// releases the mutex as soon as another thread wants it, because that thread may have to send the
// data that the first one waits for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shoal/collectives/backend/node_face.h"
#include "shoal/collectives/backend_communicator.h"
#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/torch/device.h"
#include "shoal/torch/hooks.h"
#include "shoal/torch/job_ranks.h"
#include "shoal/torch/mailbox.h"

namespace shoal::pytorch {

class PolledWork;

// How a thread waits between tests of an operation that it cannot drive: it spins, then yields,
// then sleeps for longer and longer times.
class Patience {
 public:
  explicit Patience(int spins) : spins_(spins) {}
  void pause();

 private:
  int spins_, round_ = 0;
  Clock::time_point began_ = Clock::now();
};

// Parameters of a thread that waits for a Work by driving its operation.
struct Driving {
  Deadline until;
  bool may_spin = true;
  bool waited = false;  // set by Lane::drive()
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // `messages`: a second communicator of the same ranks, for send and receive. Null in a group of
  // one.
  Lane(std::shared_ptr<collectives::Communicator> collectives,
       std::shared_ptr<collectives::Communicator> messages);
  // For the memory of `device`. `messages` may be the same communicator as `collectives`.
  Lane(std::shared_ptr<collectives::Communicator> collectives,
       std::shared_ptr<collectives::Communicator> messages, std::shared_ptr<DeviceStreams> device);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Holds the mutex. If another thread is driving, interrupts it.
  class Hold {
   public:
    explicit Hold(Lane& lane);

   private:
    std::unique_lock<std::mutex> lock_;
  };
  std::mutex& mutex() { return mutex_; }  // only for try_lock()

  // Call these with the mutex held. check_open() throws once the group has ended.
  void check_open() const;
  collectives::Communicator& collectives() { return *collectives_; }
  collectives::Communicator& messages() { return *messages_; }
  const std::shared_ptr<DeviceStreams>& device() const { return device_; }  // null: host memory
  // True if collectives run on streams only, without work of host threads.
  bool is_of_streams() const { return of_streams_; }
  double deadline_seconds() const {
    return collectives::backend_of(*collectives_).deadline_seconds();
  }
  Mailbox& mailbox() { return *mailbox_; }
  void progress() {
    if (mailbox_) mailbox_->progress();
  }
  // Waits and makes progress until `call` is done; then returns true. Returns false if the time is
  // over, another thread wants the mutex, or messages may need progress.
  bool drive(collectives::NodeWork& call, Driving& driving);
  // Call these without the mutex. is_driven(): another thread is driving. give_way(), after
  // drive(): lets threads that want the mutex take it.
  bool is_driven() const { return driven_.load(std::memory_order_relaxed) != nullptr; }
  void give_way() const;

  // Runs `body` with the mutex held. On a device, its collectives or messages run after the work of
  // the caller's current stream. Shoal's Errors become PyTorch's exceptions.
  void call(const std::function<void()>& body, bool is_message = false);
  // Starts a Work with call(body). Keeps the Work and its tensors until it has ended. A collective
  // that runs on streams lands (PolledWork::land()) before another thread sees it, and the Lane's
  // own thread follows it.
  void begin(c10::intrusive_ptr<PolledWork> work, const std::function<void()>& body,
             bool is_message = false);
  void forget(PolledWork& work);
  // Lets the Lane's own threads complete this Work if no other thread does.
  void follow(c10::intrusive_ptr<PolledWork> work);
  // The Lane's own thread destroys the tensors of copies on the device, once the copies have ended.
  void follow_copies();
  Patience patience() const { return Patience(spins_); }

  GroupHooks& hooks() { return *hooks_; }
  // What the lane shares with the group's others. Called before the first call.
  void set_group(std::shared_ptr<GroupHooks> hooks, std::shared_ptr<JobRanks> ranks) {
    hooks_ = std::move(hooks);
    ranks_ = std::move(ranks);
  }

  // Translates the exception being handled to PyTorch's and records its kind for error().
  // `of_group`: false if a caller would not wait as long as the group's time-out.
  std::exception_ptr failure(bool of_group = true);
  // Returns the deadline of later calls: the communicator may keep the one that it was made with.
  double set_deadline_seconds(double seconds);
  c10d::ErrorType error() const { return error_; }

  void abort(std::string_view reason);
  // If `drain_first`, gives Works in flight a few seconds. Then fails the remaining Works and
  // leaves the group. Does nothing in a forked child, where the communicators' threads do not
  // exist; the child must not destroy the Lane.
  void close(bool drain_first);
  bool is_forked() const;
  void check_process() const;  // throws in a forked child, which must not wait for the mutex
  // The communicator whose memory every rank of the host maps. Allocations must keep it alive.
  std::shared_ptr<collectives::Communicator> memory_owner() { return collectives_; }

 private:
  using Works = std::vector<c10::intrusive_ptr<PolledWork>>;
  // The loop of a completer: a thread that completes followed Works and so runs their futures'
  // callbacks. While a callback waits for another Work, another completer takes over.
  void complete_followed();
  void wake_completer();           // with followed_mutex_ held
  Works sweep(const Works& list);  // polls; returns the ended Works
  void drain();
  void stop_completers();

  const int owner_;  // process id
  const int spins_;
  const std::shared_ptr<DeviceStreams> device_;
  std::shared_ptr<GroupHooks> hooks_ = std::make_shared<GroupHooks>();
  std::shared_ptr<JobRanks> ranks_ = std::make_shared<JobRanks>(0, std::vector<int>{}, nullptr);
  const bool of_streams_ = false;
  std::mutex mutex_;            // taken first; no tensor or Work is destroyed while it is held
  std::atomic<int> wanted_{0};  // threads that wait for the mutex
  std::mutex driven_mutex_;
  std::atomic<collectives::NodeWork*> driven_{nullptr};  // written under driven_mutex_
  std::shared_ptr<collectives::Communicator> collectives_;
  std::shared_ptr<collectives::Communicator> messages_;
  std::unique_ptr<Mailbox> mailbox_;
  std::exception_ptr ended_;
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};
  std::deque<c10::intrusive_ptr<PolledWork>> kept_;

  std::mutex followed_mutex_;
  std::condition_variable followed_changed_;
  Works followed_;
  bool stopping_ = false;
  int free_completers_ = 0;  // completers that are not in a callback
  std::condition_variable completer_ended_;
};

// The exception for a time-out. Python sees DistBackendError.
struct TimedOut final : c10::DistBackendError {
  using DistBackendError::DistBackendError;
};

// Shoal's Errors become DistBackendError, or ValueError if they concern arguments. The text stays.
std::exception_ptr translated(const Error& error);
// Calls `body`; its Errors become PyTorch's exceptions, with the job's ranks if `ranks` is given.
template <typename Body>
auto translating(Body&& body, const JobRanks* ranks = nullptr) {
  try {
    return body();
  } catch (const Error& error) {
    std::rethrow_exception(translated(ranks ? ranks->in_job(error) : error));
  }
}

}  // namespace shoal::pytorch
