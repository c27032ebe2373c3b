#include "shoal/runtime/base/own_signals.h"

#include <array>
#include <csignal>
#include <string_view>

#include <dlfcn.h>

namespace shoal {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr std::array kAsksToEnd = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
constexpr std::array kCrash = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};

sigset_t held;  // signals that hold_signals() has blocked

// The dynamic loader runs this function before any library's constructors, if the function is
// linked into the program itself, not into a shared library.
[[maybe_unused]] void hold_signals() noexcept {
  sigset_t asked, before;
  sigemptyset(&asked);
  for (const int number : kAsksToEnd) sigaddset(&asked, number);
  if (sigprocmask(SIG_BLOCK, &asked, &before) != 0) return;
  for (const int number : kAsksToEnd)
    if (sigismember(&before, number) == 0) sigaddset(&held, number);
}

// Left out with a sanitizer: the sanitizer starts later, and instrumented code cannot run before
// it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
[[gnu::used, gnu::section(".preinit_array")]] void (*before_libraries)() = hold_signals;
#endif

// A sanitizer's own handlers stay, since they report the cause of a signal. They are part of the
// program itself or of a library named after the sanitizer (libasan).
bool belongs_to_a_sanitizer(const struct sigaction& action) noexcept {
  if (!kSanitized || action.sa_handler == SIG_DFL) return false;
  const void* const handler = (action.sa_flags & SA_SIGINFO) != 0
                                  ? reinterpret_cast<const void*>(action.sa_sigaction)
                                  : reinterpret_cast<const void*>(action.sa_handler);
  Dl_info library{};
  if (::dladdr(handler, &library) == 0) return false;
  const std::string_view name = library.dli_fname != nullptr ? library.dli_fname : "";
  return name.find("san") != std::string_view::npos || name.find(".so") == std::string_view::npos;
}

void take_back(int number) noexcept {
  struct sigaction now{};
  if (::sigaction(number, nullptr, &now) != 0) return;
  const bool ignored = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN;
  if (!ignored && !belongs_to_a_sanitizer(now)) std::signal(number, SIG_DFL);
}

}  // namespace

void take_back_signals() noexcept {
  for (const int number : kAsksToEnd) take_back(number);
  for (const int number : kCrash) take_back(number);
  sigprocmask(SIG_UNBLOCK, &held, nullptr);
}

}  // namespace shoal
