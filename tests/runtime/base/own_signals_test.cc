#include "shoal/runtime/base/own_signals.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal {
namespace {

// The signals were blocked while this program loaded; GoogleTest provides its main.
const bool taken_back = (take_back_signals(), true);

extern "C" void quit(int) { _exit(1); }

// Returns how a child ends that sends itself `signal`, with handler `before` installed when main
// begins.
int ending(int signal, void (*before)(int)) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(signal, before);
    take_back_signals();
    std::raise(signal);
    _exit(3);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Interrupts, EndAProgramWhateverHandlersALibraryInstalled) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    EXPECT_EQ(ending(signal, quit), -signal);
    EXPECT_EQ(ending(signal, SIG_DFL), -signal);
    EXPECT_EQ(ending(signal, SIG_IGN), 3) << "nohup's setting stays";
  }
}

TEST(Interrupts, CrashesEndAProgramWithTheirSignal) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep their own handlers";
#endif
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    EXPECT_EQ(ending(signal, quit), -signal);
}

TEST(Interrupts, AreBlockedUntilMainIsReady) {
  sigset_t now;
  sigprocmask(SIG_SETMASK, nullptr, &now);
  EXPECT_TRUE(taken_back);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2})
    EXPECT_EQ(sigismember(&now, signal), 0) << signal;
}

}  // namespace
}  // namespace shoal
