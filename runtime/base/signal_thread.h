// Handles signals on a separate thread, so that they never interrupt threads that compute.
//
// oneDNN's generated code sometimes uses the stack pointer for other purposes (2.6.3: it points
// outside the stack during 5 % of a small model's step). A signal handler on such a thread writes
// its frame, some kilobytes, to wherever the pointer points, which may be the heap. So a program
// that handles signals and calls Shoal must keep them away from threads that compute.
#pragma once

#include <csignal>
#include <semaphore>
#include <span>
#include <thread>

namespace shoal {

// During its lifetime, an idle thread receives these signals of the process. They are blocked in
// the thread that created the object and in all threads started later. Create it before any other
// thread. Destroy it on the same thread, when the later threads have ended or may be interrupted
// again.
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
