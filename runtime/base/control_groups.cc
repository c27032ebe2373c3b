#include "shoal/runtime/base/control_groups.h"

#include <array>
#include <cerrno>
#include <sstream>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/numbers.h"

namespace shoal {
namespace {

struct Mount {
  int version = 0;          // 0: not a control group mount
  std::string root, point;  // path in the group tree that is mounted, and the mount point
  std::string controllers;  // version 1: ",rw,cpu,cpuacct,"
};

bool has_word(const std::string& list, std::string_view word) {  // list: ",a,b,"
  return list.find(fmt::format(",{},", word)) != std::string::npos;
}

// Decodes /proc/self/mountinfo: the kernel writes a space, tab, newline or backslash as \NNN in
// octal.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string digits = text[i] == '\\' ? text.substr(i + 1, 3) : "";
    const auto code = digits.size() == 3 ? parse_number<unsigned>(digits, 8) : std::nullopt;
    if (code) {
      plain += static_cast<char>(*code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Parses a line such as "36 35 98:0 /root /point rw,noatime shared:1 - cgroup cgroup
// rw,cpu,cpuacct".
Mount mount_of(const std::string& line) {
  std::istringstream words(line);
  std::string word, type, source, options;
  Mount mount;
  words >> word >> word >> word >> mount.root >> mount.point;
  while (words >> word && word != "-") {
  }
  words >> type >> source >> options;
  mount.version = type == "cgroup2" ? 2 : type == "cgroup" ? 1 : 0;
  mount.root = unescaped(mount.root);
  mount.point = unescaped(mount.point);
  mount.controllers = fmt::format(",{},", options);
  return mount;
}

std::vector<Mount> mounts_of_groups(const std::string& mountinfo) {
  std::vector<Mount> mounts;
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);)
    if (Mount mount = mount_of(line); mount.version != 0) mounts.push_back(std::move(mount));
  return mounts;
}

// The group's path relative to the mount's root; nullopt if the group is outside of the mount.
std::optional<std::string> path_below(const std::string& mount_root, const std::string& path) {
  const std::string above = mount_root == "/" ? "" : mount_root;
  if (path != above && !path.starts_with(above + "/")) return std::nullopt;
  std::string rest = path.substr(above.size());
  while (rest.ends_with('/')) rest.pop_back();
  if ((rest + "/").find("/../") != std::string::npos) return std::nullopt;
  return rest;
}

// Appends the group and its ancestors. Uses the mount that shows most of these ancestors. Among
// equal mounts it uses the last, since that one covers the earlier ones.
void add_groups(std::vector<ControlGroup>& groups, const std::vector<Mount>& mounts, int version,
                std::string_view controller, const std::string& path, const std::string& root) {
  const Mount* best = nullptr;
  std::optional<std::string> rest;
  for (const Mount& mount : mounts) {
    if (mount.version != version || (version == 1 && !has_word(mount.controllers, controller)))
      continue;
    std::optional<std::string> below = path_below(mount.root, path);
    if (rest && (!below || below->size() < rest->size())) continue;
    best = &mount;
    rest = std::move(below);
  }
  if (best == nullptr) return;
  const std::string point = root + (best->point == "/" ? "" : best->point);
  for (std::string below = rest.value_or(""); !below.empty(); below.erase(below.rfind('/')))
    groups.push_back({version, point + below});
  groups.push_back({version, point});
}

}  // namespace

std::optional<std::string> read_kernel_file(const std::string& path) {
  int error = 0;
  std::string text;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    error = errno;
    if (error == ENOENT || error == ENOTDIR) return std::nullopt;
  } else {
    std::array<char, 4096> block{};
    ssize_t count = 0;
    while ((count = ::read(file, block.data(), block.size())) != 0) {
      if (count > 0) {
        text.append(block.data(), static_cast<std::size_t>(count));
      } else if (errno != EINTR) {
        error = errno;
        break;
      }
    }
    ::close(file);
    if (error == 0) return text;
    if (error == ENODEV) return std::nullopt;  // the group was removed during the read
  }
  log::once(log::Level::warn, path,
            fmt::format("cannot read {}: {}; the run continues without it", path,
                        std::generic_category().message(error)));
  return std::nullopt;
}

std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root) {
  std::vector<ControlGroup> groups;
  const auto own = read_kernel_file(root + "/proc/self/cgroup");
  const auto mountinfo = read_kernel_file(root + "/proc/self/mountinfo");
  if (!own || !mountinfo) return groups;
  const std::vector<Mount> mounts = mounts_of_groups(*mountinfo);
  // Lines are "0::PATH" (version 2), or "9:memory:PATH" and "4:cpu,cpuacct:PATH" (version 1).
  std::istringstream lines(*own);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      add_groups(groups, mounts, 2, controller, path, root);
    else if (has_word(controllers, controller))
      add_groups(groups, mounts, 1, controller, path, root);
  }
  return groups;
}

}  // namespace shoal
