#include "shoal/runtime/base/signal_thread.h"

#include "shoal/runtime/base/error.h"

namespace shoal {
// The thread starts before the signals are blocked, so it inherits a mask that accepts them.
SignalThread::SignalThread(std::span<const int> signals) : thread_([this] { done_.acquire(); }) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  const int failed = pthread_sigmask(SIG_BLOCK, &set, &before_);
  SHOAL_ASSERT(failed == 0);
}

SignalThread::~SignalThread() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  done_.release();
  thread_.join();
}

}  // namespace shoal
