#include "shoal/runtime/base/progress.h"

#include <utility>

namespace shoal::progress {
namespace {

thread_local Listener* innermost = nullptr;

}  // namespace

Listener::Listener(std::function<void()> hears)
    : hears_(std::move(hears)), before_(std::exchange(innermost, this)) {}

Listener::~Listener() { innermost = before_; }

void made() {
  if (innermost == nullptr) return;
  // The listener may read or write files itself; those reads and writes must not call it again.
  struct Deaf {
    Listener* const heard = std::exchange(innermost, nullptr);
    ~Deaf() { innermost = heard; }
  };
  const Deaf meanwhile;
  meanwhile.heard->hears_();
}

void made_of(std::size_t bytes) {
  constexpr std::size_t kEach = std::size_t{64} << 10;
  if (innermost == nullptr || (innermost->bytes_ += bytes) < kEach) return;
  innermost->bytes_ = 0;
  made();
}

}  // namespace shoal::progress
