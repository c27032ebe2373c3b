// Long work tells that it goes on. Reading a large file may take longer than other ranks wait for a
// sign of life: loops over its rows, lines or bytes call tell_progress(), and the thread that began
// the work listens.
//
//   const ProgressListener listener([&] { store.progressed(); });
//   open(path);  // whose loops call tell_progress()
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

namespace shoal {

class ProgressListener {
 public:
  // `heard` is called in this thread alone, while this object lives. It may throw to end the work.
  explicit ProgressListener(std::function<void()> heard)
      : heard_(std::move(heard)), before_(std::exchange(current(), this)) {}
  ~ProgressListener() { current() = before_; }
  ProgressListener(const ProgressListener&) = delete;
  ProgressListener& operator=(const ProgressListener&) = delete;

 private:
  friend void tell_progress(std::size_t bytes);
  static ProgressListener*& current() {
    static thread_local constinit ProgressListener* listener = nullptr;
    return listener;
  }

  std::function<void()> heard_;
  ProgressListener* before_;
  std::size_t told_ = 0;
};

// `bytes`: how many were read, about. Costs a load where nothing listens.
inline void tell_progress(std::size_t bytes = 256) {
  constexpr std::size_t kEach = std::size_t{64} << 10;
  ProgressListener* const listener = ProgressListener::current();
  if (listener == nullptr || (listener->told_ += bytes) < kEach) return;
  listener->told_ = 0;
  listener->heard_();
}

}  // namespace shoal
