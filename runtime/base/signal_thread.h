// Keeps signals away from threads that compute, by handling them on a separate thread.
//
// oneDNN's generated code sometimes uses the stack pointer for other purposes (2.6.3: outside the
// stack for 5 % of a small model's step). A signal handler on such a thread writes its frame, some
// kilobytes, wherever the pointer points: into the heap. So a program that handles signals and
// calls Shoal must keep them away from threads that compute.
#pragma once

#include <csignal>
#include <semaphore>
#include <span>
#include <thread>

namespace shoal {

// During its lifetime, an idle thread takes these signals of the process. They are blocked in the
// thread that made the object and in all threads started later. Make it before any other thread.
// Destroy it on the same thread, once the later threads have ended or may be interrupted again.
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

}  // namespace shoal
