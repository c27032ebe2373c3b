#include "shoal/sagemaker/process/process.h"

#include <csignal>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::sagemaker {
namespace {

ProcessResult shell(const std::string& command, const ProcessOptions& options = {}) {
  return run_process({"sh", "-c", command}, options);
}

TEST(Process, ReportsHowItEnded) {
  EXPECT_EQ(shell("exit 0").status, 0);
  EXPECT_EQ(shell("exit 7").status, 7);
  EXPECT_EQ(shell("kill -KILL $$").status, 128 + SIGKILL);
  EXPECT_EQ(shell("echo one >&2; echo two >&2").error, "one\ntwo\n");
}

TEST(Process, HasItsOwnEnvironmentAndDirectory) {
  EXPECT_EQ(shell("echo $SHOAL_TEST_A-$HOME >&2; pwd >&2",
                  {.environment = {"SHOAL_TEST_A=x=y", "HOME=here"}, .directory = "/"})
                .error,
            "x=y-here\n/\n");
}

TEST(Process, KeepsTheEndOfLongErrors) {
  const std::string error = shell("yes 0123456 | head -n 40000 >&2; echo last >&2").error;
  EXPECT_LE(error.size(), 64U << 10U);
  EXPECT_GE(error.size(), 60U << 10U);
  EXPECT_TRUE(error.ends_with("0123456\nlast\n"));
}

TEST(Process, MissingProgramsAreNamed) {
  try {
    run_process({"no-such-program"});
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("cannot start no-such-program"));
  }
  EXPECT_TRUE(is_program("sh"));
  EXPECT_FALSE(is_program("no-such-program"));
  EXPECT_FALSE(is_program("/etc/passwd"));
}

// A parent that ignores SIGCHLD hides how this program's children end.
TEST(Process, IsNotWaitedForForEverIfSigchldIsIgnored) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_THROW(shell("exit 3"), Error);
  std::signal(SIGCHLD, before);
  EXPECT_EQ(shell("exit 3").status, 3);
}

TEST(Process, SaysThatItsWordsAreTooLong) {
  try {
    run_process({"true", std::string(1 << 20, 'x')});
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_THAT(error.remedy(), ::testing::HasSubstr("longer than the system allows"));
  }
}

TEST(Process, IsSentUsr1AgainUntilItEnds) {
  std::atomic<int> stop{SIGTERM};
  const ProcessResult result =
      shell("n=0; trap 'n=$((n+1))' USR1; while [ $n -lt 3 ]; do sleep 0.02; done; exit $n",
            {.environment = {},
             .directory = {},
             .stop = &stop,
             .stop_with = SIGUSR1,
             .repeat_seconds = 0.3});
  EXPECT_EQ(result.status, 3);
  EXPECT_FALSE(result.was_killed);
}

TEST(Process, GetsItsStopSignalOnce) {
  std::atomic<int> stop{0};
  std::thread later([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = SIGTERM;
  });
  const ProcessResult result = shell(
      "n=0; trap 'n=$((n+1))' USR1; while [ $n = 0 ]; do sleep 0.02; done; sleep 0.2; exit $n",
      {.environment = {}, .directory = {}, .stop = &stop, .stop_with = SIGUSR1});
  later.join();
  EXPECT_EQ(result.status, 1) << "signals";
  EXPECT_TRUE(result.was_stopped);
  EXPECT_FALSE(result.was_killed);
  // choose_stop selects the signal at the moment of stopping.
  stop = 0;
  std::thread again([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = SIGTERM;
  });
  EXPECT_EQ(shell("trap 'exit 5' USR1; trap 'exit 6' USR2; while :; do sleep 0.05; done",
                  {.environment = {},
                   .directory = {},
                   .stop = &stop,
                   .stop_with = SIGKILL,
                   .choose_stop = [] { return SIGUSR2; }})
                .status,
            6);
  again.join();
}

TEST(Process, IsKilledWithItsChildrenAfterTheGrace) {
  std::atomic<int> stop{SIGTERM};
  const auto start = Clock::now();
  const ProcessResult result =
      shell("trap '' TERM; sleep 30 & echo $! >&2; wait; sleep 30",
            {.environment = {}, .directory = {}, .stop = &stop, .grace_seconds = 0.3});
  EXPECT_TRUE(result.was_killed);
  // The process is gone, or has ended and its new parent has not waited for it yet.
  const auto runs = [id = result.error.substr(0, result.error.find('\n'))] {
    std::string stat;
    std::getline(std::ifstream("/proc/" + id + "/stat"), stat);
    const auto end = stat.rfind(") ");
    return end != std::string::npos && stat[end + 2] != 'Z';
  };
  while (runs() && seconds_since(start) < 10)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(runs()) << "its child";
  EXPECT_EQ(result.status, 128 + SIGKILL);
  EXPECT_LT(seconds_since(start), 20);
}

TEST(Process, IsGivenUpUnlessItIsStopped) {
  std::atomic<int> stop{0};
  ProcessOptions options;
  options.stop = &stop;
  options.gives_up = [] { return true; };
  const ProcessResult lost = shell("exec sleep 600", options);
  EXPECT_TRUE(lost.was_given_up);
  EXPECT_FALSE(lost.was_stopped);
  EXPECT_EQ(lost.status, 128 + SIGTERM);
  stop = SIGTERM;
  options.stop_with = SIGINT;
  const ProcessResult stopped = shell("exec sleep 600", options);
  EXPECT_TRUE(stopped.was_stopped);
  EXPECT_FALSE(stopped.was_given_up);
  EXPECT_EQ(stopped.status, 128 + SIGINT);
}

// A process that inherited its pipe may live longer.
TEST(Process, IsNotWaitedForBeyondItsOwnEnd) {
  const auto start = Clock::now();
  EXPECT_EQ(shell("sleep 20 & exit 3").status, 3);
  EXPECT_LT(seconds_since(start), 10);
}

}  // namespace
}  // namespace shoal::sagemaker
