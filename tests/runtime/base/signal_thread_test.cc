#include "shoal/runtime/base/signal_thread.h"

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
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

TEST(SignalThread, KeepsSignalsFromComputingThreads) {
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

}  // namespace
}  // namespace shoal
