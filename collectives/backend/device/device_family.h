// A Communicator of device memory and all its splits in this process. They fail together.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::device {

class DeviceFamily {
 public:
  // `member`: the host-memory Communicator that one of the family's device Communicators uses.
  void join(const std::shared_ptr<Communicator>& member) {
    const std::lock_guard lock(mutex_);
    std::erase_if(members_, [](const auto& one) { return one.expired(); });
    members_.push_back(member);
  }
  // Call when an operation has failed while a stream waited for it. Its Work may never be read.
  // Aborts all members: every later call or wait on them throws, on the other ranks too. Acts only
  // once.
  void give_up(const Error& why) noexcept {
    if (given_up_.exchange(true)) return;
    const std::lock_guard lock(mutex_);
    for (const auto& one : members_) try {
        if (const auto member = one.lock()) member->abort(why.what());
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it has failed already
      }
  }
  // Counts a call that blocked its thread until an operation was done.
  void count_wait() { ++waits_; }
  std::int64_t waits() const { return waits_; }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Communicator>> members_;
  std::atomic<bool> given_up_{false};
  std::atomic<std::int64_t> waits_{0};
};

}  // namespace shoal::collectives::device
