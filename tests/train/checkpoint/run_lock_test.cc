// Two runs in one output_dir: the second is refused while the first lives, and takes over
// if the first is dead.
#include "shoal/train/checkpoint/run_lock.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

// This program behaves as if no file system had hard links, like exFAT and many network disks.
extern "C" int link(const char*, const char*) noexcept {
  errno = EPERM;
  return -1;
}

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

constexpr RunLockTimes kShort{.beat = 0.05, .lease = 0.4};

class RunLockTest : public ::testing::Test {
 protected:
  std::string path() const { return output_ / "run.lock"; }

  std::string text() const {
    std::ifstream in(path());
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const {
    std::ofstream out(path() + ".new");
    out << bytes;
    out.close();
    fs::rename(path() + ".new", path());
  }
  // The record that a lock of this process writes.
  nlohmann::json own_record() const {
    const TemporaryDirectory elsewhere;
    const RunLock lock(elsewhere.path());
    std::ifstream in(elsewhere / "run.lock");
    return nlohmann::json::parse(in);
  }
  nlohmann::json record_of_another_host(int beat) const {
    nlohmann::json record = own_record();
    record["host"] = "far-away";
    record["boot"] = "00000000-1111-2222-3333-444444444444";
    record["pid"] = 4711;
    record["token"] = "theirs";
    record["since"] = "2026-11-01 01:02:03 UTC";
    record["alive"] = "2026-11-01 04:05:06 UTC";
    record["beat"] = beat;
    return record;
  }
  std::string refusal(const RunLockTimes& times = kShort) const {
    return error_text([&] { const RunLock lock(output_.path(), {}, times); });
  }
  // Takes the lock and returns what was logged meanwhile.
  std::string said_while_taken(const RunLockTimes& times = kShort) const {
    std::string said;
    const RunLock lock(
        output_.path(), [&](const std::string& line) { said += line + "\n"; }, times);
    lock.check();
    return said;
  }

  TemporaryDirectory output_;
};

// A process that holds the lock until it is killed.
class HoldingProcess {
 public:
  explicit HoldingProcess(const std::string& output_dir) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const RunLock lock(output_dir);
      const char ready = 'r';
      if (::write(ends[1], &ready, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char ready = 0;
    holds_ = ::read(ends[0], &ready, 1) == 1;
    ::close(ends[0]);
  }
  ~HoldingProcess() { end(true); }
  void end(bool collect) {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0 && collect) {
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  bool holds() const { return holds_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  bool holds_ = false;
};

TEST_F(RunLockTest, IsGoneWhenItsRunEnds) {
  const std::string output = output_ / "new/run";
  {
    const RunLock lock(output);
    EXPECT_TRUE(fs::exists(output + "/run.lock"));
    lock.check();
  }
  EXPECT_TRUE(fs::is_empty(output));
}

TEST_F(RunLockTest, ALivingProcessKeepsItAndAKilledOneLosesItAtOnce) {
  HoldingProcess first(output_.path());
  ASSERT_TRUE(first.holds());
  const std::string before = text();
  const auto began = Clock::now();
  EXPECT_THAT(refusal({}), AllOf(HasSubstr(output_.path() + " is in use by process " +
                                           std::to_string(first.pid()) + " on "),
                                 HasSubstr(" since "), HasSubstr("(last sign of life "),
                                 HasSubstr("wait for it, stop it, or give another --output_dir"),
                                 Not(HasSubstr("\n"))));
  EXPECT_EQ(text(), before);
  first.end(true);
  EXPECT_THAT(said_while_taken({}), HasSubstr("which has ended: this run takes it over"));
  EXPECT_LT(seconds_since(began), deadlines::kRunLease / 2);
  EXPECT_EQ(output_.files(), 0);
}

TEST_F(RunLockTest, AReusedProcessNumberLosesItAtOnce) {
  nlohmann::json record = own_record();
  record["process_start"] = record["process_start"].get<std::uint64_t>() - 1;
  put(record.dump());
  const auto began = Clock::now();
  EXPECT_THAT(said_while_taken({}), HasSubstr("which has ended"));
  EXPECT_LT(seconds_since(began), deadlines::kRunLease / 2);
}

TEST_F(RunLockTest, AnotherHostLosesItWhenItsHeartbeatStopsForTheLease) {
  put(record_of_another_host(7).dump());
  const auto began = Clock::now();
  EXPECT_THAT(
      said_while_taken(),
      AllOf(HasSubstr("is in use by process 4711 on far-away since 2026-11-01 01:02:03 UTC: "
                      "waiting up to 0.4 s to see whether it still lives"),
            HasSubstr("gave no sign of life for 0.4 s: this run takes it over")));
  EXPECT_GE(seconds_since(began), kShort.lease);
  EXPECT_EQ(output_.files(), 0);
}

TEST_F(RunLockTest, ALivingHostKeepsIt) {
  put(record_of_another_host(1).dump());
  std::atomic<bool> ends = false;
  std::thread far_away([&] {
    for (int beat = 2; !ends; ++beat) {
      put(record_of_another_host(beat).dump());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  EXPECT_THAT(refusal({.beat = 0.05, .lease = 10}),
              HasSubstr("is in use by process 4711 on far-away since 2026-11-01 01:02:03 UTC (last "
                        "sign of life 2026-11-01 04:05:06 UTC)"));
  ends = true;
  far_away.join();
  EXPECT_TRUE(fs::exists(path()));
}

// A container shares the host's name and boot id, but its processes are not visible here.
TEST_F(RunLockTest, TheHeartbeatDecidesForAnotherBootOrPidNamespace) {
  for (const char* const field : {"boot", "pid_namespace"}) {
    nlohmann::json record = own_record();
    if (record[field].is_string())
      record[field] = "another";
    else
      record[field] = 1;
    put(record.dump());
    EXPECT_THAT(said_while_taken(), HasSubstr("gave no sign of life")) << field;
  }
}

TEST_F(RunLockTest, TheHeartbeatDecidesForAnUnreadableFile) {
  for (const char* const bytes :
       {"", "{", "[]", "{\"pid\": \"x\"}", "{\"token\": null, \"pid\": 3}"}) {
    put(bytes);
    EXPECT_THAT(said_while_taken(), HasSubstr("cannot be read and nothing wrote it for 0.4 s"))
        << bytes;
  }
  put("");
  std::thread writer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    put("{");
  });
  EXPECT_THAT(refusal({.beat = 0.05, .lease = 10}), HasSubstr("is in use"));
  writer.join();
}

// The token is part of a file name, so a token written by another program could name any path.
TEST_F(RunLockTest, WithAnyTokenIsTakenOver) {
  for (const std::string& token :
       {std::string("../../x"), std::string("a/b"), std::string(3000, 'a'), std::string("a\nb")}) {
    nlohmann::json record = record_of_another_host(7);
    record["token"] = token;
    put(record.dump());
    EXPECT_THAT(said_while_taken(), HasSubstr("gave no sign of life for 0.4 s: this run takes"));
    EXPECT_EQ(output_.files(), 0) << token;
  }
}

TEST_F(RunLockTest, ALinkIsRefusedByName) {
  std::ofstream(output_ / "file") << "x";
  for (const std::string target : {"/nonexistent/x", "file", "run.lock"}) {
    fs::create_symlink(target, path());
    EXPECT_THAT(refusal(), AllOf(HasSubstr(path() + " is a link to " + target + ", not the lock"),
                                 HasSubstr("remove " + path() + " if no run writes there")));
    fs::remove(path());
  }
}

TEST_F(RunLockTest, AFileThatComesAndGoesDoesNotBlockForEver) {
  const auto holder = [&](int number) {
    nlohmann::json record = record_of_another_host(7);
    record["token"] = std::to_string(number);
    return record.dump();
  };
  put(holder(0));
  std::atomic<bool> ends = false;
  std::thread others([&] {
    for (int i = 1; !ends; ++i) {
      put(holder(i));
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  EXPECT_THAT(refusal({.beat = 0.05, .lease = 0.6}),
              AllOf(HasSubstr("cannot be had: its run.lock came and went for 3 s"),
                    HasSubstr("remove " + path())));
  ends = true;
  others.join();
}

TEST_F(RunLockTest, IsSpokenOfInOneLine) {
  const RunLock lock(output_.path(), {}, kShort);
  nlohmann::json record = record_of_another_host(7);
  record["host"] = "far\naway";
  record["since"] = "noon\n";
  put(record.dump());
  EXPECT_THAT(error_text([&] { lock.check(); }),
              AllOf(HasSubstr("process 4711 on far away since noon "), Not(HasSubstr("\n"))));
}

TEST_F(RunLockTest, IsTakenOverByOneOfManyWaiters) {
  put(record_of_another_host(7).dump());
  constexpr int kWaiters = 8;
  std::atomic<int> holders = 0, refused = 0;
  std::vector<std::thread> waiters;
  for (int i = 0; i < kWaiters; ++i)
    waiters.emplace_back([&] {
      try {
        const RunLock lock(output_.path(), {}, kShort);
        ++holders;
        while (holders + refused < kWaiters)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        lock.check();
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("is in use"));
        ++refused;
      }
    });
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(holders, 1);
  EXPECT_EQ(refused, kWaiters - 1);
  EXPECT_EQ(output_.files(), 0);
}

TEST_F(RunLockTest, BeatsWhileItIsHeld) {
  const RunLock lock(output_.path(), {}, kShort);
  const std::string before = text();
  const Deadline deadline = Deadline::in_seconds(10);
  while (text() == before && !deadline.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NE(text(), before);
  EXPECT_EQ(text().size(), before.size());
}

TEST_F(RunLockTest, CheckNamesTheNewOwnerAndTheEndKeepsItsFile) {
  {
    const RunLock lock(output_.path(), {}, kShort);
    lock.check();
    put(record_of_another_host(7).dump());
    EXPECT_THAT(error_text([&] { lock.check(); }),
                HasSubstr("was taken over by process 4711 on far-away since 2026-11-01 01:02:03"));
    fs::rename(path(), path() + ".aside");
    EXPECT_THAT(error_text([&] { lock.check(); }), HasSubstr("its run.lock is gone"));
    fs::create_directory(path());
    EXPECT_THAT(error_text([&] { lock.check(); }), HasSubstr("run.lock"));  // unread is not held
    fs::remove(path());
    fs::rename(path() + ".aside", path());
    std::this_thread::sleep_for(std::chrono::duration<double>(3 * kShort.beat));
  }
  EXPECT_THAT(text(), HasSubstr("theirs"));  // our heartbeat was not written into it
}

}  // namespace
}  // namespace shoal
