#include "shoal/runtime/base/kept_signals.h"

#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal {
namespace {

extern "C" void quit(int) { _exit(1); }

// Returns how a child ends that sends itself `signal` after something replaced its handler `own`.
int ending(int signal, void (*own)(int)) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(signal, own);
    {
      const KeptSignals kept;
      std::signal(signal, quit);
    }
    std::raise(signal);
    _exit(3);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

extern "C" void end_with_4(int) { _exit(4); }

TEST(KeptSignals, EndTheProcessAsBefore) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGSEGV, SIGABRT, SIGBUS, SIGRTMIN}) {
    EXPECT_EQ(ending(signal, SIG_DFL), -signal);
    EXPECT_EQ(ending(signal, SIG_IGN), 3) << signal;
    EXPECT_EQ(ending(signal, end_with_4), 4) << signal;
  }
}

volatile std::sig_atomic_t arrived = 0;
extern "C" void note_arrival(int) { arrived = 1; }

TEST(KeptSignals, ASignalDuringTheLoadMeetsTheOwnHandler) {
  const auto before = std::signal(SIGUSR2, note_arrival);
  {
    const KeptSignals kept;
    std::signal(SIGUSR2, quit);
    std::raise(SIGUSR2);
    EXPECT_EQ(arrived, 0);
  }
  EXPECT_EQ(arrived, 1);
  std::signal(SIGUSR2, before);
}

}  // namespace
}  // namespace shoal
