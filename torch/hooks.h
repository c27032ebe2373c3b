// The hooks that PyTorch registers for one group. `failed` is called before a failed operation's
// waits throw its error; `completed`, after an operation has succeeded.
//
// Thread-safe. A hook may wait for Python's lock, as may a copy of it, so no hook is called or
// copied while a lock is held. An exception of a hook is logged: it changes no operation.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "shoal/runtime/base/log.h"

namespace shoal::pytorch {

template <typename... Arguments>
class Hooks {
 public:
  using Hook = std::function<void(Arguments...)>;
  void add(std::int64_t number, Hook hook) {
    auto added = std::make_shared<Hook>(std::move(hook));  // a replaced hook is destroyed with it
    const std::lock_guard lock(mutex_);
    std::swap(hooks_[number], added);
  }
  void remove(std::int64_t number) {
    std::shared_ptr<Hook> removed;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    if (auto found = hooks_.extract(number)) removed = std::move(found.mapped());
  }
  void call(Arguments... arguments) {
    std::vector<std::shared_ptr<Hook>> hooks;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [number, hook] : hooks_) hooks.push_back(hook);
    }
    for (const auto& hook : hooks) try {
        (*hook)(arguments...);
      } catch (const std::exception& problem) {
        log::error("a hook of a process group raised: {}", problem.what());
      } catch (...) {
        log::error("a hook of a process group raised an unknown exception");
      }
  }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<Hook>> hooks_;
};

struct GroupHooks {
  Hooks<> failed;
  Hooks<std::uint64_t> completed;  // the Work's completion key
};

}  // namespace shoal::pytorch
