// Tests against directory trees that look like /proc and /sys/fs/cgroup.
#include "shoal/runtime/base/free_memory.h"

#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr std::int64_t kMiB = 1 << 20;

class FreeMemoryTest : public ::testing::Test {
 protected:
  FreeMemoryTest() {
    write("proc/self/mountinfo",
          "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
          "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory");
  }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ / path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
  }
  void machine(std::int64_t available_mib) {
    write("proc/meminfo", "MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable: " +
                              std::to_string(available_mib * 1024) +
                              " kB\nSwapTotal: 1024 kB\nSwapFree: 1024 kB");
  }
  // Sets a group's limit and use: `in_use` MiB, of which `file_pages` can be reclaimed.
  void group(const std::string& path, const std::string& max, std::int64_t in_use,
             std::int64_t file_pages) {
    write("sys/fs/cgroup" + path + "/memory.max", max);
    write("sys/fs/cgroup" + path + "/memory.current", std::to_string(in_use * kMiB));
    write("sys/fs/cgroup" + path + "/memory.stat",
          "anon 5\ninactive_file " + std::to_string(file_pages * kMiB));
  }
  FreeMemory now() const { return free_memory(root_.path()); }

  TemporaryDirectory root_;
};

TEST_F(FreeMemoryTest, WithoutGroupsItIsAvailableMemoryPlusSwap) {
  machine(3000);
  EXPECT_EQ(now().free, 3001 * kMiB);
  EXPECT_EQ(now().total, 8193 * kMiB);
  EXPECT_EQ(now().bound, "the machine's memory");
}

TEST_F(FreeMemoryTest, TheTightestGroupAroundTheProcessCounts) {
  machine(3000);
  write("proc/self/cgroup", "0::/job/step");
  group("/job/step", "max", 10, 0);
  group("/job", std::to_string(500 * kMiB), 300, 100);
  group("", std::to_string(2000 * kMiB), 300, 0);
  EXPECT_EQ(now().free, 300 * kMiB);
  EXPECT_EQ(now().total, 500 * kMiB);
  EXPECT_THAT(now().bound, HasSubstr("memory.max"));
  machine(200);  // other processes use the rest
  EXPECT_EQ(now().bound, "the machine's memory");
}

TEST_F(FreeMemoryTest, AContainersOwnGroupIsTheMount) {
  machine(3000);
  write("proc/self/cgroup", "0::/of/the/host/only");
  group("", std::to_string(256 * kMiB), 300, 0);  // the limit was set below the memory in use
  EXPECT_EQ(now().free, 0);
  EXPECT_EQ(now().total, 256 * kMiB);
}

TEST_F(FreeMemoryTest, SupportsVersion1) {
  machine(3000);
  write("proc/self/cgroup", "12:cpuset:/\n4:cpu,memory:/docker/abc\n1:name=systemd:/x");
  const std::string mine = "sys/fs/cgroup/memory/docker/abc/";
  write(mine + "memory.limit_in_bytes", std::to_string(1000 * kMiB));
  write(mine + "memory.usage_in_bytes", std::to_string(400 * kMiB));
  write(mine + "memory.stat", "total_inactive_file " + std::to_string(150 * kMiB));
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(now().free, 750 * kMiB);
  EXPECT_THAT(now().bound, HasSubstr("memory.limit_in_bytes"));
}

TEST_F(FreeMemoryTest, IsUnknownIfNoFileCanBeRead) {
  EXPECT_FALSE(now().known());
  write("proc/meminfo", "MemAvailable: soon");
  write("proc/self/cgroup", "::\n0:\nnothing");
  EXPECT_FALSE(now().known());
}

TEST(FreeMemory, AddressesRunOutBeforeTheirLimit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + 500 * kMiB);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  const FreeMemory here = free_memory();
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(here.bound, "ulimit -v");
  EXPECT_NEAR(static_cast<double>(here.free), 300.0 * kMiB, 30.0 * kMiB);
}

TEST(FreeMemory, IsKnownForThisProcess) {
  const FreeMemory here = free_memory();
  EXPECT_GT(here.free, 0);
  EXPECT_GE(here.total, here.free);
}

}  // namespace
}  // namespace shoal
