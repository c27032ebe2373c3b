#include "shoal/runtime/base/cpu_quota.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <sys/stat.h>

#include "shoal/runtime/base/control_groups.h"
#include "shoal/runtime/base/log.h"

namespace shoal {
namespace {

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<std::string> fields_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

// Reads a group's quota. Version 2 has one file: "max 100000" or "150000 100000". Version 1 has one
// file for the quota (-1: none) and one for the period.
std::optional<double> cores_of(const ControlGroup& group, const std::string& file) {
  const auto text = read_kernel_file(file);
  if (!text) return std::nullopt;
  std::vector<std::string> words = fields_of(*text);
  std::string said = "'" + *text + "'";
  if (group.version == 1) {
    if (words == std::vector<std::string>{"-1"}) return std::nullopt;
    const std::string period =
        read_kernel_file(group.directory + "/cpu.cfs_period_us").value_or("");
    for (std::string& word : fields_of(period)) words.push_back(std::move(word));
    said += " and cpu.cfs_period_us '" + period + "'";
  } else if (!words.empty() && words.front() == "max") {
    return std::nullopt;
  }
  if (words.size() == 2) {
    const auto quota = whole_number(words[0]), period = whole_number(words[1]);
    if (quota && period && *quota > 0 && *period > 0)
      return static_cast<double>(*quota) / static_cast<double>(*period);
  }
  std::erase(said, '\n');
  log::once(log::Level::warn, file,
            fmt::format("{} holds {}, which is no CPU quota: threads are counted without it; "
                        "SHOAL_THREADS sets their number",
                        file, said.substr(0, 100)));
  return std::nullopt;
}

// Identifies a group by its directory's device and inode, which are the same for all its processes.
std::string identity_of(const std::string& directory) {
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0) return "0:0";
  return fmt::format("{}:{}", status.st_dev, status.st_ino);
}

}  // namespace

std::vector<CpuQuota> cpu_quotas(const std::string& root) {
  std::vector<CpuQuota> quotas;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    std::string file = group.directory + (group.version == 2 ? "/cpu.max" : "/cpu.cfs_quota_us");
    if (const auto cores = cores_of(group, file))
      quotas.push_back({*cores, std::move(file), identity_of(group.directory)});
  }
  return quotas;
}

const std::vector<CpuQuota>& own_cpu_quotas() {
  static const std::vector<CpuQuota> quotas = cpu_quotas();
  return quotas;
}

const CpuQuota* tightest(const std::vector<CpuQuota>& quotas) {
  const auto smallest = std::ranges::min_element(quotas, {}, &CpuQuota::cores);
  return smallest == quotas.end() ? nullptr : &*smallest;
}

int cores_within(int cores, const std::vector<CpuQuota>& quotas) {
  const CpuQuota* const quota = tightest(quotas);
  if (quota != nullptr && quota->cores < cores) cores = static_cast<int>(quota->cores);
  return std::max(1, cores);
}

}  // namespace shoal
