// A rank's segments of device memory, which others read and write in place. The driver gets them
// back when the rank and all ranks of its process that were told of them have let go: one that has
// failed ends at once, and neighbours that have not heard of it yet still fold out of its memory
// and copy into it, at work that is queued or that they queue next. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "shoal/collectives/backend/device/peer_access.h"

namespace shoal::collectives {

class Segments {
 public:
  struct LetGo {
    void operator()(Segments* segments) const { segments->let_go(1); }
  };
  using Held = std::unique_ptr<Segments, LetGo>;

  static Held make(std::shared_ptr<PeerAccess> access) {
    return Held(new Segments(std::move(access)));
  }
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  void add(void* base) {
    const std::lock_guard lock(mutex_);
    bases_.push_back(base);
  }
  // The address tells `others` of them, each of which lets go once: by the Held of held_by(), or
  // at once, as those of other processes, who cannot, are let go of by who has told them.
  std::uint64_t tell(int others) {
    holders_ += others;
    return reinterpret_cast<std::uint64_t>(this);
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): another thread's, as it sent it
  static Held held_by(std::uint64_t told) { return Held(reinterpret_cast<Segments*>(told)); }
  void let_go(int holders) {
    if (holders > 0 && holders_.fetch_sub(holders) == holders) delete this;
  }
  // Other processes may open them from now on; until they have closed them the driver gets nothing
  // back, which it does not allow: where that is never known, they are kept until the process ends.
  void opened_elsewhere() { kept_ = true; }
  void closed_elsewhere() { kept_ = false; }

 private:
  explicit Segments(std::shared_ptr<PeerAccess> access) : access_(std::move(access)) {}
  ~Segments() {
    for (void* base : bases_)
      if (!kept_) access_->deallocate(base);
  }

  const std::shared_ptr<PeerAccess> access_;
  std::mutex mutex_;
  std::vector<void*> bases_;
  std::atomic<int> holders_{1};
  std::atomic<bool> kept_{false};
};

}  // namespace shoal::collectives
