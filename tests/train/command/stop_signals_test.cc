// Signals that stop a run: their effect during the run, at its end and afterwards.
#include "shoal/train/command/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/runtime/base/signal_thread.h"

namespace shoal::command {
namespace {

using ::testing::KilledBySignal;

struct sigaction action_of(int number) {
  struct sigaction action{};
  ::sigaction(number, nullptr, &action);
  return action;
}

void own_handler(int) {}

class StopSignalsTest : public ::testing::Test {
 protected:
  void SetUp() override { stop_signal = 0; }
  void TearDown() override {
    for (const int number : StopSignals::kNumbers) std::signal(number, SIG_DFL);
    stop_signal = 0;
  }
};
using StopSignalsDeathTest = StopSignalsTest;

TEST_F(StopSignalsTest, EachIsNotedAndEndsNothing) {
  for (const int number : StopSignals::kNumbers) {
    const StopSignals signals;
    std::raise(number);
    EXPECT_EQ(stop_signal, number);
  }
}

// The earlier handlers come back even if a signal stopped the run: a notebook continues.
TEST_F(StopSignalsTest, AfterwardsEachDoesWhatItDidBefore) {
  std::signal(SIGINT, own_handler);
  std::signal(SIGTERM, SIG_IGN);
  for (const int number : {0, SIGINT, SIGUSR1}) {
    {
      const StopSignals signals;
      EXPECT_EQ(action_of(SIGTERM).sa_handler, SIG_IGN);
      if (number != 0) std::raise(number);
    }
    EXPECT_EQ(action_of(SIGINT).sa_handler, own_handler) << number;
    EXPECT_EQ(action_of(SIGTERM).sa_handler, SIG_IGN) << number;
    EXPECT_EQ(action_of(SIGUSR1).sa_handler, SIG_DFL) << number;
  }
}

// A handler that still runs on another thread must not change the action after the thread that ends
// StopSignals restored it. So the kernel resets the action when it delivers the signal.
TEST_F(StopSignalsTest, TheKernelResetsTheAction) {
  const StopSignals signals;
  EXPECT_TRUE(action_of(SIGINT).sa_flags & SA_RESETHAND);
  EXPECT_TRUE(action_of(SIGTERM).sa_flags & SA_RESETHAND);
  EXPECT_FALSE(action_of(SIGUSR1).sa_flags & SA_RESETHAND);
}

TEST_F(StopSignalsTest, AStoppedProgramIgnoresRepeats) {
  {
    StopSignals signals;
    std::raise(SIGUSR1);
    std::raise(SIGUSR1);
    signals.ignore_repeats();
  }
  EXPECT_EQ(action_of(SIGUSR1).sa_handler, SIG_IGN);
  EXPECT_EQ(action_of(SIGTERM).sa_handler, SIG_DFL);
  std::raise(SIGUSR1);
}

TEST_F(StopSignalsDeathTest, ASecondSignalEndsTheProcess) {
  for (const int number : {SIGINT, SIGTERM})
    EXPECT_EXIT(
        {
          const StopSignals signals;
          std::raise(number);
          std::raise(number);
        },
        KilledBySignal(number), "");
}

// train() receives such a signal after its last step. The thread has it blocked.
TEST_F(StopSignalsDeathTest, ALateSignalEndsTheProcess) {
  for (const int number : StopSignals::kNumbers)
    EXPECT_EXIT(
        {
          ::alarm(10);  // ends the process if it hangs
          const SignalThread takes_signals(StopSignals::kNumbers);
          {
            const StopSignals signals;
            ::kill(::getpid(), number);
            while (stop_signal == 0) {
            }
          }
          end_by(stop_signal);
        },
        KilledBySignal(number), "");
}

}  // namespace
}  // namespace shoal::command
