#include "shoal/runtime/io/shared_directory.h"

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

// Runs `action` in a child, which is killed when the action is done.
class Child {
 public:
  explicit Child(const std::function<void()>& action) {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        action();
      } catch (...) {
        ::_exit(1);
      }
      ::close(pipe[0]);
      if (::write(pipe[1], "x", 1) == 1)
        for (;;) ::pause();
      ::_exit(1);
    }
    ::close(pipe[1]);
    char done = 0;
    EXPECT_EQ(::read(pipe[0], &done, 1), 1) << "the child failed";
    ::close(pipe[0]);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  ::pid_t pid_ = 0;
};

// Joins in a child. The directory object is killed with the child.
void join(const std::string& path, int rank, int ranks) {
  new SharedDirectory(path, rank, ranks);  // never destroyed: NOLINT(bugprone-unused-raii)
}

void make_old(const std::string& path, std::chrono::seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

TEST(SharedDirectory, TheLastRankThatLeavesRemovesIt) {
  const TemporaryDirectory parent;
  const std::string path = parent / "shoal-run";
  auto first = std::make_unique<SharedDirectory>(path, 0, 2);
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
  std::ofstream(path + "/file") << "text";
  first.reset();
  EXPECT_TRUE(fs::exists(path + "/file")) << "rank 1 has not joined yet";
  auto second = std::make_unique<SharedDirectory>(path, 1, 2);
  first = std::make_unique<SharedDirectory>(path, 0, 2);
  second.reset();
  EXPECT_TRUE(fs::exists(path + "/file")) << "rank 0 still uses it";
  first.reset();
  EXPECT_EQ(parent.files(), 0);
}

TEST(SharedDirectory, ASurvivorRemovesItAfterAnotherRankWasKilled) {
  const TemporaryDirectory parent;
  const std::string path = parent / "shoal-run";
  {
    const SharedDirectory survivor(path, 0, 2);
    Child child([&] { join(path, 1, 2); });
    child.kill();
  }
  EXPECT_EQ(parent.files(), 0);
}

TEST(SharedDirectory, TheNextRunRemovesWhatKilledRanksLeft) {
  const TemporaryDirectory parent;
  const std::string path = parent / "shoal-run";
  Child one([&] { join(path, 0, 2); });
  Child two([&] { join(path, 1, 2); });
  std::ofstream(path + "/file") << "text";
  make_old(path, std::chrono::hours(48));
  remove_left_directories(parent.path(), "shoal-");
  one.kill();
  remove_left_directories(parent.path(), "shoal-");
  EXPECT_TRUE(fs::exists(path + "/file")) << "a rank is alive";
  two.kill();
  remove_left_directories(parent.path(), "other-");
  EXPECT_TRUE(fs::exists(path + "/file"));
  remove_left_directories(parent.path(), "shoal-");
  EXPECT_EQ(parent.files(), 0);
}

// The other ranks may be about to join.
TEST(SharedDirectory, ADirectoryThatRanksHaveNotJoinedIsKeptForAMinute) {
  const TemporaryDirectory parent;
  const std::string path = parent / "shoal-run";
  {
    const Child killed([&] { join(path, 0, 2); });
  }
  remove_left_directories(parent.path(), "shoal-");
  make_old(path, std::chrono::seconds(40));
  remove_left_directories(parent.path(), "shoal-");
  EXPECT_TRUE(fs::exists(path));
  make_old(path, std::chrono::seconds(70));
  remove_left_directories(parent.path(), "shoal-");
  EXPECT_EQ(parent.files(), 0);
}

// A restarted host has another boot id.
TEST(SharedDirectory, ADirectoryOfAnEarlierBootIsRemovedAtOnce) {
  const TemporaryDirectory parent;
  const auto leave = [&](const std::string& name, const std::string& boot,
                         const std::string& host) {
    fs::create_directory(parent / name);
    std::ofstream(parent / name + "/alive") << "shoal 0 2 " << boot << " " << host << "\n";
  };
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  leave("shoal-before", "0-1", host.data());
  leave("shoal-now", boot, host.data());
  leave("shoal-elsewhere", "0-1", std::string(host.data()) + "x");  // its lock may be invisible
  remove_left_directories(parent.path(), "shoal-");
  EXPECT_FALSE(fs::exists(parent / "shoal-before"));
  EXPECT_TRUE(fs::exists(parent / "shoal-now"));
  EXPECT_TRUE(fs::exists(parent / "shoal-elsewhere"));
}

TEST(SharedDirectory, LeavesOtherEntriesAlone) {
  const TemporaryDirectory parent, elsewhere;
  {
    const Child killed([&] { join(elsewhere / "shoal-run", 0, 1); });
  }
  fs::create_directory_symlink(elsewhere / "shoal-run", parent / "shoal-link");
  fs::create_directory_symlink(parent / "shoal-loop", parent / "shoal-loop");
  std::ofstream(parent / "shoal-file") << "text";
  fs::create_directory(parent / "shoal-mine");
  std::ofstream(parent / "shoal-mine/data") << "text";
  fs::create_directory(parent / "shoal-alive");
  std::ofstream(parent / "shoal-alive/alive") << "and well\n";
  fs::create_directory(parent / "shoal-linked");
  fs::create_symlink(elsewhere / "shoal-run/alive", parent / "shoal-linked/alive");
  fs::create_directories(parent / "shoal-folder/alive");
  if (::geteuid() == 0) {
    fs::copy(elsewhere / "shoal-run", parent / "shoal-theirs");
    ASSERT_EQ(::chown((parent / "shoal-theirs").c_str(), 12345, 12345), 0);
  }
  const int before = parent.files();
  for (const auto& entry : fs::directory_iterator(parent.path()))
    if (!entry.is_symlink() && entry.is_directory()) make_old(entry.path(), std::chrono::hours(48));
  remove_left_directories(parent.path(), "shoal-");
  EXPECT_EQ(parent.files(), before);
  EXPECT_TRUE(fs::exists(elsewhere / "shoal-run/alive"));
  remove_left_directories(parent / "none", "shoal-");
  for (const std::string name : {"shoal-link", "shoal-loop", "shoal-file"})
    EXPECT_THAT(test::error_text([&] { const SharedDirectory made(parent / name, 0, 1); }),
                ::testing::HasSubstr("is not a directory of this user"))
        << name;
}

// Runs begin and end at the same time, and each removes leftovers of the others.
TEST(SharedDirectory, RanksOfALiveRunNeverLoseIt) {
  const TemporaryDirectory parent;
  const std::string path = parent / "shoal-run";
  std::vector<::pid_t> children;
  for (int child = 0; child < 4; ++child) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    bool lost = false;
    for (int round = 0; round < 60 && !lost; ++round) {
      remove_left_directories(parent.path(), "shoal-");
      const SharedDirectory mine(path, 0, 1);
      const std::string file = fmt::format("{}/{}-{}", path, child, round);
      std::ofstream(file) << "text";
      lost = !fs::exists(file);
    }
    ::_exit(lost ? 1 : 0);
  }
  for (const ::pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(parent.files(), 0);
}

}  // namespace
}  // namespace shoal
