// Signs of progress of a thread's long work, for other ranks that wait for it.
//
//   const progress::Listener hears([&] { store.progressed(); });
//   read_much();  // runtime/io and loops over rows call progress::made()
//
// runtime/io gives a sign before it opens or looks at a file, and after each block that it read or
// wrote; loops over rows, lines or tokens give one for every 64 KiB. A call that hangs in a dead
// disk gives none.
#pragma once

#include <cstddef>
#include <functional>

namespace shoal::progress {

// Receives the signs of progress of the thread that made it. Only the innermost one receives them.
// A listener that reads or writes files itself receives no signs of that.
class Listener {
 public:
  // `hears` runs in this thread. It may throw to end the work.
  explicit Listener(std::function<void()> hears);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  friend void made();
  friend void made_of(std::size_t bytes);
  const std::function<void()> hears_;
  Listener* const before_;
  std::size_t bytes_ = 0;  // since the last sign
};

// Gives a sign at once. Throws what the listener throws; call it only where an Error may be thrown.
// Without a listener it costs one load.
void made();
// Gives a sign for every 64 KiB of `bytes`, roughly the amount that the loop has read.
void made_of(std::size_t bytes = 256);

}  // namespace shoal::progress
