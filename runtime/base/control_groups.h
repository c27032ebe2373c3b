// The control groups that hold this process, as the kernel shows them (cgroups(7), version 2 and
// 1).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

struct ControlGroup {
  int version = 2;
  std::string directory;  // "/sys/fs/cgroup/job/step"
};

// The process's groups that may limit `controller` ("cpu", "memory"), each before the one around
// it, up to the root of their mount; first those of one version, then of the other. The mounts are
// those of /proc/self/mountinfo. A path outside of the mount ("/../..", or the host's name for a
// container's own group) means the mount's root. A listed directory may be absent. `root`: where a
// test has its proc and sys. Never throws; a file that cannot be read is logged once.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = {});

// The whole text of a small file of the kernel; nullopt if it does not exist or cannot be read,
// which is logged once.
std::optional<std::string> read_kernel_file(const std::string& path);

}  // namespace shoal
