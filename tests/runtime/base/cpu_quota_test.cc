// Tests against directory trees that look like /proc and /sys/fs/cgroup.
#include "shoal/runtime/base/cpu_quota.h"

#include <algorithm>

#include "support/group_tree.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/runtime/base/control_groups.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using testing::GroupTree;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<double> cores(const GroupTree& tree) {
  std::vector<double> all;
  for (const CpuQuota& quota : cpu_quotas(tree.root())) all.push_back(quota.cores);
  return all;
}
int threads_of_64(const GroupTree& tree) { return cores_within(64, cpu_quotas(tree.root())); }

std::vector<std::string> notices_about(const GroupTree& tree) {
  std::vector<std::string> texts;
  for (const log::Notice& notice : log::notices())
    if (notice.text.find(tree.root()) != std::string::npos) texts.push_back(notice.text);
  return texts;
}

TEST(CpuQuota, TheSmallestOfAllGroupsAroundTheProcessCounts) {
  const GroupTree tree("0::/job/step", GroupTree::version2());
  EXPECT_THAT(cores(tree), IsEmpty()) << "a group without the controller has no file";
  EXPECT_EQ(threads_of_64(tree), 64);
  tree.max("/job/step", "800000 100000");
  tree.max("/job", "300000 100000");
  tree.max("", "max 100000");
  tree.max("/other", "100000 100000");
  EXPECT_THAT(cores(tree), ElementsAre(8, 3));
  EXPECT_EQ(tightest(cpu_quotas(tree.root()))->file, tree.root() + "/sys/fs/cgroup/job/cpu.max");
  EXPECT_EQ(threads_of_64(tree), 3);
  EXPECT_EQ(cores_within(2, cpu_quotas(tree.root())), 2) << "the affinity is the smaller limit";
  EXPECT_THAT(notices_about(tree), IsEmpty());
}

TEST(CpuQuota, FractionsGiveWholeThreadsAndAtLeastOne) {
  const GroupTree tree("0::/", GroupTree::version2());
  for (const auto& [text, threads] : {std::pair{"50000 100000", 1},
                                      {"270000 100000", 2},
                                      {"99999 100000", 1},
                                      {"8000 1000", 8}}) {
    tree.max("", text);
    EXPECT_EQ(threads_of_64(tree), threads) << text;
  }
  EXPECT_THAT(cores(tree), ElementsAre(8));
}

TEST(CpuQuota, SupportsVersion1) {
  const GroupTree tree("7:cpuset:/\n4:cpu,cpuacct:/docker/a:b\n1:name=systemd:/x",
                       GroupTree::version1());
  tree.cfs("/docker/a:b", "250000", "100000");
  tree.cfs("/docker", "-1", "100000");
  tree.cfs("", "-1", "100000");
  EXPECT_THAT(cores(tree), ElementsAre(2.5));
  EXPECT_EQ(threads_of_64(tree), 2);
  EXPECT_THAT(notices_about(tree), IsEmpty());
}

// systemd's hybrid mode: version 1 has the controllers, and version 2 has none.
TEST(CpuQuota, AHybridHasBothVersions) {
  const GroupTree tree("4:cpu,cpuacct:/job\n0::/session",
                       "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" + GroupTree::version1() +
                           "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  tree.cfs("/job", "150000", "50000");
  EXPECT_EQ(threads_of_64(tree), 3);
  tree.write("/sys/fs/cgroup/unified/session/cpu.max", "200000 100000");
  EXPECT_EQ(threads_of_64(tree), 2);
}

TEST(CpuQuota, TheMountIsFoundInMountinfo) {
  const GroupTree tree("0::/job", "31 23 0:28 / /groups\\040here rw - cgroup2 cgroup2 rw\n");
  tree.write("/groups here/job/cpu.max", "400000 100000");
  EXPECT_EQ(threads_of_64(tree), 4);
}

// A container's mount shows the container's own group as its root.
TEST(CpuQuota, AContainerSeesItsOwnGroup) {
  struct Container {
    std::string path, mount_root;
  };
  for (const auto& [path, mount_root] : {Container{"/", "/"},
                                         {"/docker/abc", "/docker/abc"},
                                         {"/docker/abc", "/"},
                                         {"/../..", "/"},
                                         {"/../..", "/../.."},
                                         {"/../other", "/"},
                                         {"/", "/../x"}}) {
    const GroupTree v2("0::" + path, GroupTree::version2(mount_root));
    v2.max("", "200000 100000");
    EXPECT_EQ(threads_of_64(v2), 2) << path << " in " << mount_root;
    const GroupTree v1("4:cpu,cpuacct:" + path, GroupTree::version1(mount_root));
    v1.cfs("", "200000", "100000");
    EXPECT_EQ(threads_of_64(v1), 2) << path << " in " << mount_root;
  }
  const GroupTree inner("0::/docker/abc/step", GroupTree::version2("/docker/abc"));
  inner.max("", "400000 100000");
  inner.max("/step", "300000 100000");
  EXPECT_THAT(cores(inner), ElementsAre(3, 4));
}

TEST(CpuQuota, TheMountWithMostGroupsCounts) {
  const GroupTree tree("0::/pod/container",
                       "40 23 0:28 /pod/container /mine rw - cgroup2 cgroup2 rw\n" +
                           GroupTree::version2() +
                           "41 23 0:28 /neighbour /theirs rw - cgroup2 cgroup2 rw\n");
  tree.write("/mine/cpu.max", "600000 100000");
  tree.max("/pod/container", "600000 100000");
  tree.max("/pod", "500000 100000");
  tree.write("/theirs/cpu.max", "100000 100000");
  EXPECT_THAT(cores(tree), ElementsAre(6, 5));
}

TEST(CpuQuota, MalformedFilesAreLoggedOnceAndSetNoQuota) {
  for (const std::string text :
       {"", "lots 100000", "100000", "1e5 100000", "0 100000", "-1 100000", "100000 0",
        "100000 100000 100000", "99999999999999999999 100000"}) {
    const GroupTree tree("0::/job", GroupTree::version2());
    tree.max("/job", text);
    tree.max("", "700000 100000");
    EXPECT_THAT(cores(tree), ElementsAre(7)) << text;
    EXPECT_THAT(cores(tree), ElementsAre(7)) << text;
    EXPECT_THAT(notices_about(tree),
                ElementsAre(::testing::AllOf(HasSubstr("/job/cpu.max"), HasSubstr("'" + text + "'"),
                                             HasSubstr("SHOAL_THREADS"))));
  }
  const GroupTree tree("4:cpu:/", GroupTree::version1());
  tree.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000");  // without a period
  EXPECT_EQ(threads_of_64(tree), 64);
  EXPECT_THAT(notices_about(tree), ElementsAre(HasSubstr("cpu.cfs_quota_us")));
}

TEST(CpuQuota, UnreadableFilesAreLoggedOnceAndSetNoQuota) {
  const GroupTree tree("0::/job", GroupTree::version2());
  std::filesystem::create_directories(tree.root() +
                                      "/sys/fs/cgroup/job/cpu.max");  // even root cannot read it
  EXPECT_EQ(threads_of_64(tree), 64);
  EXPECT_EQ(threads_of_64(tree), 64);
  EXPECT_THAT(notices_about(tree), ElementsAre(HasSubstr("cannot read")));
  const testing::TemporaryDirectory nothing;
  EXPECT_THAT(cpu_quotas(nothing.path()), IsEmpty());
  const GroupTree odd("::\n0:\nnothing\n0::", "1 2 3\n\n- cgroup2\n1 2 3 / / rw cgroup2 cgroup2\n");
  EXPECT_THAT(cpu_quotas(odd.root()), IsEmpty());
  EXPECT_THAT(notices_about(odd), IsEmpty());
}

TEST(CpuQuota, OneGroupHasOneIdentity) {
  const GroupTree tree("0::/job/a", GroupTree::version2());
  tree.max("/job/a", "200000 100000");
  tree.max("/job", "300000 100000");
  const auto first = cpu_quotas(tree.root());
  tree.write("/proc/self/cgroup", "0::/job/b");
  tree.max("/job/b", "200000 100000");
  const auto second = cpu_quotas(tree.root());
  ASSERT_EQ(first.size(), 2U);
  ASSERT_EQ(second.size(), 2U);
  EXPECT_NE(first[0].identity, second[0].identity);
  EXPECT_EQ(first[1].identity, second[1].identity);
}

TEST(CpuQuota, AvailableCoresAreWithinIt) {
  EXPECT_EQ(available_cores(), cores_within(affinity_cores(), cpu_quotas()));
}

}  // namespace
}  // namespace shoal
