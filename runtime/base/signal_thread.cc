#include "shoal/runtime/base/signal_thread.h"

#include <string_view>

#include <dlfcn.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// Its handlers report what a signal means. They lie in the program itself, or in a library that is
// named after it (libasan).
bool belongs_to_a_sanitizer(const struct sigaction& action) noexcept {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const void* const handler = (action.sa_flags & SA_SIGINFO) != 0
                                  ? reinterpret_cast<const void*>(action.sa_sigaction)
                                  : reinterpret_cast<const void*>(action.sa_handler);
  Dl_info library{};
  if (action.sa_handler == SIG_DFL || ::dladdr(handler, &library) == 0) return false;
  const std::string_view name = library.dli_fname != nullptr ? library.dli_fname : "";
  return name.find("san") != std::string_view::npos || name.find(".so") == std::string_view::npos;
#else
  (void)action;
  return false;
#endif
}

}  // namespace

// The thread inherits the current mask, in which the signals are not blocked yet.
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

void take_back_signals() noexcept {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGABRT, SIGBUS,
                           SIGFPE, SIGILL, SIGSEGV}) {
    struct sigaction now{};
    if (::sigaction(number, nullptr, &now) != 0) continue;
    const bool ignored = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN;
    if (!ignored && !belongs_to_a_sanitizer(now)) std::signal(number, SIG_DFL);
  }
}

}  // namespace shoal
