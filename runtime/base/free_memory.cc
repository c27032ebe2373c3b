#include "shoal/runtime/base/free_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shoal/runtime/base/control_groups.h"

namespace shoal {
namespace {

std::optional<std::int64_t> number_in(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end == text.data()) return std::nullopt;  // "max"
  return value;
}

std::optional<std::int64_t> number_in_file(const std::string& path) {
  std::string word;
  std::ifstream(path) >> word;
  return number_in(word);
}

// Returns the value of the line "name value" or "name: value kB"; 0 if there is none.
std::int64_t field_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key, value, unit;
    words >> key >> value >> unit;
    if (key == name) return number_in(value).value_or(0) * (unit == "kB" ? 1024 : 1);
  }
  return 0;
}

void take_smaller(FreeMemory& memory, std::int64_t free, std::int64_t total, std::string bound) {
  free = std::max<std::int64_t>(free, 0);
  if (!memory.known() || free < memory.free) memory = {free, total, std::move(bound)};
}

struct GroupFiles {
  const char *limit, *usage, *file_pages;
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};

void look_into_group(FreeMemory& memory, const std::string& directory, const GroupFiles& files) {
  constexpr std::int64_t kNoLimit = std::int64_t{1}
                                    << 60;  // without a limit, version 1 reports a number near 2^63
  const auto limit = number_in_file(directory + "/" + files.limit);
  if (!limit || *limit >= kNoLimit) return;
  const std::int64_t used = number_in_file(directory + "/" + files.usage).value_or(0);
  const std::int64_t reclaimable = field_of(directory + "/memory.stat", files.file_pages);
  take_smaller(memory, *limit - std::max<std::int64_t>(used - reclaimable, 0), *limit,
               fmt::format("the limit of the container or control group ({})", files.limit));
}

}  // namespace

FreeMemory free_memory(const std::string& root) {
  FreeMemory memory;
  const std::string proc = root + "/proc", meminfo = proc + "/meminfo";
  if (const std::int64_t available = field_of(meminfo, "MemAvailable:"); available > 0)
    take_smaller(memory, available + field_of(meminfo, "SwapFree:"),
                 field_of(meminfo, "MemTotal:") + field_of(meminfo, "SwapTotal:"),
                 "the machine's memory");
  for (const ControlGroup& group : control_groups("memory", root))
    look_into_group(memory, group.directory, group.version == 2 ? kVersion2 : kVersion1);
  rlimit addresses{};
  if (::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY) {
    const auto limit = static_cast<std::int64_t>(addresses.rlim_cur);
    const std::int64_t used =
        number_in_file(proc + "/self/statm").value_or(0) * ::sysconf(_SC_PAGESIZE);
    take_smaller(memory, (limit - used) / 5 * 3, limit, "ulimit -v");
  }
  return memory;
}

}  // namespace shoal
