// Signs of progress from a thread's long work, so that other ranks keep waiting for it.
//
//   const progress::Listener hears([&] { store.progressed(); });
//   read_much();  // runtime/io and loops over rows call progress::made()
//
// runtime/io gives a sign before it opens or inspects a file, and after each block that it reads or
// writes. Loops over rows, lines or tokens give a sign for every 64 KiB. A system call that hangs
// on a dead disk gives no sign.
#pragma once

#include <cstddef>
#include <functional>

namespace shoal::progress {

// Receives the signs of progress of the thread that created it. If several exist, only the
// innermost receives them. File access by the listener itself gives no signs.
class Listener {
 public:
  // `hears` runs in that thread. It may throw to end the work.
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

// Gives a sign now. Throws what the listener throws, so call it only where an Error may be thrown.
// Without a listener it costs one load.
void made();
// Adds `bytes`, roughly the amount that the loop has read, and gives a sign for every 64 KiB.
void made_of(std::size_t bytes = 256);

}  // namespace shoal::progress
