#include "harness/row.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <ostream>

#include <nlohmann/json.hpp>

namespace shoal::bench {
namespace {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

std::string machine() {
  static const std::string name = processor();
  return name;
}

std::string commit() { return SHOAL_COMMIT; }

void write_row(std::ostream& out, const Row& row) {
  const nlohmann::ordered_json json{
      {"operation", row.operation},
      {"dtype", row.dtype},
      {"shape", row.shape},
      {"bytes", row.bytes},
      {"operations", row.operations},
      {"threads", row.threads},
      {"p50_us", row.p50_us},
      {"p99_us", row.p99_us},
      {"gbytes_per_s", row.p50_us > 0 ? static_cast<double>(row.bytes) / row.p50_us * 1e-3 : 0},
      {"gflops", row.p50_us > 0 ? static_cast<double>(row.operations) / row.p50_us * 1e-3 : 0},
      {"bound", row.bound},
      {"bound_fraction", row.bound_fraction},
      {"machine", machine()},
      {"commit", commit()}};
  out << json.dump() << '\n' << std::flush;
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(p * static_cast<double>(values.size())) - 1;
  return values[static_cast<std::size_t>(std::max(0.0, rank))];
}

}  // namespace shoal::bench
