// A directory tree that looks like /proc and /sys/fs/cgroup to one process.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/temporary_directory.h"

namespace shoal::testing {

class GroupTree {
 public:
  // Lines of /proc/self/mountinfo for one cgroup mount of each version, as a host has them.
  static std::string version2(const std::string& root = "/") {
    return "31 23 0:28 " + root + " /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
  }
  static std::string version1(const std::string& root = "/") {
    return "33 31 0:29 " + root + " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
  }

  GroupTree(const std::string& groups, const std::string& mounts) {
    write("/proc/self/cgroup", groups);
    write("/proc/self/mountinfo", "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + mounts);
  }
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root() + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
  }
  void max(const std::string& group, const std::string& text) const {  // version 2
    write("/sys/fs/cgroup" + group + "/cpu.max", text);
  }
  void cfs(const std::string& group, const std::string& quota, const std::string& period) const {
    write("/sys/fs/cgroup/cpu,cpuacct" + group + "/cpu.cfs_quota_us", quota);
    write("/sys/fs/cgroup/cpu,cpuacct" + group + "/cpu.cfs_period_us", period);
  }
  const std::string& root() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
};

}  // namespace shoal::testing
