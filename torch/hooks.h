// The hooks that PyTorch registers for one group. `failed` is called before a failed operation's
// waits throw its error; `completed`, after an operation has succeeded.
//
// Thread-safe. A hook may wait for Python's lock, so call() holds no lock while it calls hooks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace shoal::pytorch {

template <typename... Arguments>
class Hooks {
 public:
  using Hook = std::function<void(Arguments...)>;
  void add(std::int64_t number, Hook hook) {
    const std::lock_guard lock(mutex_);
    hooks_[number] = std::move(hook);
  }
  void remove(std::int64_t number) {
    Hook removed;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    if (auto found = hooks_.extract(number)) removed = std::move(found.mapped());
  }
  void call(Arguments... arguments) {
    std::vector<Hook> hooks;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [number, hook] : hooks_) hooks.push_back(hook);
    }
    for (const Hook& hook : hooks) hook(arguments...);
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, Hook> hooks_;
};

struct GroupHooks {
  Hooks<> failed;
  Hooks<std::uint64_t> completed;  // the Work's completion key
};

}  // namespace shoal::pytorch
