#include "shoal/runtime/base/signal_thread.h"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal {
namespace {

constexpr std::array kSignals = {SIGUSR2};
std::atomic<int> handled_by{0};

extern "C" void note_thread(int) { handled_by = gettid(); }

bool is_blocked() {
  sigset_t now;
  pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return sigismember(&now, SIGUSR2) == 1;
}

TEST(SignalThread, KeepsSignalsFromThreadsThatCompute) {
  const auto before = std::signal(SIGUSR2, note_thread);
  {
    const SignalThread takes(kSignals);
    EXPECT_TRUE(is_blocked());
    std::atomic<int> later{0};
    std::thread([&] {
      EXPECT_TRUE(is_blocked());
      later = gettid();
    }).join();
    ASSERT_EQ(kill(getpid(), SIGUSR2), 0);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (handled_by == 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_NE(handled_by, 0);
    EXPECT_NE(handled_by, gettid());
    EXPECT_NE(handled_by, later);
  }
  EXPECT_FALSE(is_blocked());
  std::signal(SIGUSR2, before);
}

extern "C" void quit(int) { _exit(1); }

// How a child ends that sends itself `signal`, where `before` was there when its main began.
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

TEST(Interrupts, EndAProgramWhateverALibraryMadeOfThem) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    EXPECT_EQ(ending(signal, quit), -signal);
    EXPECT_EQ(ending(signal, SIG_DFL), -signal);
    EXPECT_EQ(ending(signal, SIG_IGN), 3) << "nohup's stays";
  }
}

TEST(Interrupts, CrashesEndAProgramWithTheirSignal) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's handlers stay";
#endif
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    EXPECT_EQ(ending(signal, quit), -signal);
}

}  // namespace
}  // namespace shoal
