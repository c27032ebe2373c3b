// The control groups (cgroups(7), versions 1 and 2) that this process belongs to.
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

// The groups of this process that may limit `controller` ("cpu", "memory"). Each group precedes its
// parent, up to the root of the mount. Groups of one version come before those of the other. Mounts
// are read from /proc/self/mountinfo. A group path outside of the mount ("/../..", or a container's
// group under the host's name for it) is taken as the mount's root. A listed directory may be
// absent. `root`: prefix of /proc and /sys, for tests. Never throws; a file that cannot be read is
// logged once.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root = {});

// The content of a small kernel file. Returns nullopt if the file does not exist or cannot be read;
// a failed read is logged once.
std::optional<std::string> read_kernel_file(const std::string& path);

}  // namespace shoal
