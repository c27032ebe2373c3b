#include "shoal/runtime/base/process_use.h"

#include <array>
#include <sstream>

#include <sys/resource.h>
#include <unistd.h>

#include "shoal/runtime/base/control_groups.h"

namespace shoal {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

void add_network(ProcessUse& use, std::string_view text) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    const auto name = line.find_first_not_of(' ');
    if (colon == std::string::npos || line.substr(name, colon - name) == "lo") continue;
    std::istringstream fields(line.substr(colon + 1));
    std::array<std::int64_t, 9> values{};  // received bytes, seven other counters, sent bytes
    bool whole = true;
    for (std::int64_t& value : values) whole = whole && fields >> value;
    if (!whole) continue;
    use.received_bytes += values.front();
    use.sent_bytes += values.back();
  }
}

ProcessUse process_use(const std::string& root) {
  ProcessUse use;
  if (rusage kernel{}; ::getrusage(RUSAGE_SELF, &kernel) == 0)
    use.processor_seconds = seconds(kernel.ru_utime) + seconds(kernel.ru_stime);
  std::istringstream pages(read_kernel_file(root + "/proc/self/statm").value_or(""));
  std::int64_t size = 0, resident = 0;
  if (pages >> size >> resident) use.resident_bytes = resident * ::sysconf(_SC_PAGESIZE);
  add_network(use, read_kernel_file(root + "/proc/net/dev").value_or(""));
  return use;
}

}  // namespace shoal
