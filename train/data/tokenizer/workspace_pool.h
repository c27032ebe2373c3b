// Scratch memory of encoding calls, kept between calls. Internal to this folder.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <thread>

namespace shoal {

// Pool of idle workspaces. A thread usually gets the one it used before, with warm caches. Holds at
// most kSlots; others are freed.
template <typename Workspace>
class WorkspacePool {
 public:
  ~WorkspacePool() {
    for (auto& slot : slots_) delete slot.load();
  }
  std::unique_ptr<Workspace> take() {
    std::unique_ptr<Workspace> mine(home().exchange(nullptr, std::memory_order_acquire));
    return mine ? std::move(mine) : std::make_unique<Workspace>();
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    Workspace* none = nullptr;
    if (home().compare_exchange_strong(none, workspace.get(), std::memory_order_release,
                                       std::memory_order_relaxed))
      (void)workspace.release();  // the slot owns it now
  }

 private:
  static constexpr std::size_t kSlots = 64;
  std::atomic<Workspace*>& home() {
    const std::size_t hash = std::hash<std::thread::id>{}(std::this_thread::get_id());
    return slots_[(hash * 0x9E3779B97F4A7C15u) >> 58];
  }
  std::array<std::atomic<Workspace*>, kSlots> slots_{};
};

template <typename Workspace>
class Borrowed {
 public:
  explicit Borrowed(WorkspacePool<Workspace>& pool) : pool_(pool), workspace_(pool.take()) {}
  ~Borrowed() { pool_.give_back(std::move(workspace_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workspace& operator*() { return *workspace_; }

 private:
  WorkspacePool<Workspace>& pool_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace shoal
