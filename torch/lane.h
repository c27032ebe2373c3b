// One group's communicators of host memory, or of one device's, shared by all threads that call it.
//
// A Communicator wants one thread at a time. Each call and each look at a Work in flight therefore
// happens under the Lane's mutex. A thread that waits drives its operation under the mutex, but
// gives it away as soon as another thread wants it: that thread may have to send what the first one
// waits for.
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
#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/torch/device.h"
#include "shoal/torch/mailbox.h"

namespace shoal::pytorch {

class PolledWork;

// Between two looks of a thread whose operation cannot be driven: spins, then gives the core away,
// then sleeps longer and longer.
class Patience {
 public:
  explicit Patience(int spins) : spins_(spins) {}
  void pause();

 private:
  int spins_, round_ = 0;
  Clock::time_point began_ = Clock::now();
};

// A thread's wait for a Work by driving its operation.
struct Driving {
  Deadline until;
  bool may_spin = true;
  bool waited = false;  // set if it could be driven
};

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // `messages`: a second group of the same ranks for send and receive; null in a group of one.
  Lane(std::shared_ptr<collectives::Communicator> collectives,
       std::shared_ptr<collectives::Communicator> messages);
  // Of `device`'s memory; `messages` may be `collectives`.
  Lane(std::shared_ptr<collectives::Communicator> collectives,
       std::shared_ptr<collectives::Communicator> messages, std::shared_ptr<DeviceStreams> device);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Holds the mutex. Takes it from a thread that drives.
  class Hold {
   public:
    explicit Hold(Lane& lane);

   private:
    std::unique_lock<std::mutex> lock_;
  };
  std::mutex& mutex() { return mutex_; }  // to try it only

  // With the mutex held. The first throws once the group has ended.
  void check_open() const;
  collectives::Communicator& collectives() { return *collectives_; }
  collectives::Communicator& messages() { return *messages_; }
  const std::shared_ptr<DeviceStreams>& device() const { return device_; }  // null: host memory
  // Whether collectives are work of streams, in which no host takes part.
  bool is_of_streams() const { return of_streams_; }
  Mailbox& mailbox() { return *mailbox_; }
  void progress() {
    if (mailbox_) mailbox_->progress();
  }
  // Waits and makes progress until `call` is done (true), the time is over, another thread wants
  // the mutex, or messages may want progress.
  bool drive(collectives::NodeWork& call, Driving& driving);
  // Without the mutex. The first: whether a thread drives. The second, after a drive(): lets
  // threads that want the mutex have it.
  bool is_driven() const { return driven_.load(std::memory_order_relaxed) != nullptr; }
  void give_way() const;

  // Runs `body` with the mutex held. On a device its collectives, or messages, come after the work
  // of the caller's current stream. Its Errors become PyTorch's exceptions.
  void call(const std::function<void()>& body, bool is_message = false);
  // Begins a Work by call(body). Keeps it, and so its tensors, until it has ended.
  void begin(c10::intrusive_ptr<PolledWork> work, const std::function<void()>& body,
             bool is_message = false);
  void forget(PolledWork& work);
  // The Lane's own thread completes this Work if no other thread does.
  void follow(c10::intrusive_ptr<PolledWork> work);
  Patience patience() const { return Patience(spins_); }

  // PyTorch's exception for the one that is being handled; remembers its kind.
  std::exception_ptr failure();
  c10d::ErrorType error() const { return error_; }

  void abort(std::string_view reason);
  // Gives Works in flight a few seconds if `drain_first`, fails what is left, leaves the group.
  // Does nothing in a forked child, which must not destroy the Lane: its threads are the parent's.
  void close(bool drain_first);
  bool is_forked() const;
  // Memory that every rank of the host maps; it keeps the communicator.
  std::shared_ptr<collectives::Communicator> memory_owner() { return collectives_; }

 private:
  using Works = std::vector<c10::intrusive_ptr<PolledWork>>;
  // A completer: a thread that completes followed Works and so runs the callbacks of their futures.
  // While a callback waits for another Work, another completer takes over.
  void complete_followed();
  Works sweep(const Works& list);  // those that have ended
  void drain();
  void stop_completers();

  const int owner_;  // the process
  const int spins_;
  const std::shared_ptr<DeviceStreams> device_;
  const bool of_streams_ = false;
  std::mutex mutex_;  // taken before the two others; no tensor and no Work is destroyed under it
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
  int free_completers_ = 0;  // without those whose callbacks may wait
  std::condition_variable completer_ended_;
};

// PyTorch's exception with the text of the one that is being handled: DistBackendError for Shoal's
// Errors, ValueError for those about arguments.
std::exception_ptr translated();
// Calls `body`; its Errors become PyTorch's exceptions.
template <typename Body>
auto translating(Body&& body) {
  try {
    return body();
  } catch (...) {
    std::rethrow_exception(translated());
  }
}

}  // namespace shoal::pytorch
