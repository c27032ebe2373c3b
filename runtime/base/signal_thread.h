// A thread that takes signals so that those which compute do not; and a signal that libraries take.
//
// oneDNN's generated code uses the stack pointer for other things at times (2.6.3: for 5 % of a
// small model's step it was outside the stack). A handler that runs on such a thread writes its
// frame, some kilobytes, where the pointer happens to point: into the heap. So a program that
// handles signals, and calls Shoal, must not let them reach threads that compute.
#pragma once

#include <csignal>
#include <semaphore>
#include <span>
#include <thread>

namespace shoal {

// While it lives these signals of the process are handled, or end it, on a thread that does nothing
// else: the thread that made it, and all that are made later, have them blocked. Make it before any
// other thread; end it on the thread that made it, when those made since have ended or may be
// interrupted again.
class SignalThread {
 public:
  explicit SignalThread(std::span<const int> signals);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  sigset_t before_{};
  std::binary_semaphore done_{0};
  std::thread thread_;
};

// First in main: SIGINT (Ctrl-C) ends the program as it does others, although a library took it
// when it was loaded. libinfinipath does, which Debian's libfabric brings for PSM: it exits with 1,
// without a word. Left alone where it is ignored (nohup, a shell's background job).
void take_back_interrupts() noexcept;

}  // namespace shoal
