#include "shoal/kernels/cuda/architectures.h"

#include <charconv>

#include <fmt/format.h>

namespace shoal::kernels {
namespace {

bool one_runs_on(std::string_view entry, int capability) {
  int made_for = 0;
  const auto [rest, problem] = std::from_chars(entry.data(), entry.data() + entry.size(), made_for);
  if (problem != std::errc{}) return true;  // "all", "all-major", "native"
  const std::string_view kind(rest, static_cast<std::size_t>(entry.data() + entry.size() - rest));
  if (kind.starts_with('a')) return capability == made_for;
  const bool machine = capability / 10 == made_for / 10 && capability >= made_for;
  const bool ptx = capability >= made_for;
  if (kind.starts_with('f') || kind == "-real") return machine;
  return kind == "-virtual" ? ptx : machine || ptx;
}

}  // namespace

bool runs_on(std::string_view architectures, int capability) {
  while (!architectures.empty()) {
    const std::size_t end = architectures.find_first_of("; ");
    const std::string_view entry = architectures.substr(0, end);
    if (!entry.empty() && one_runs_on(entry, capability)) return true;
    architectures.remove_prefix(end == std::string_view::npos ? architectures.size() : end + 1);
  }
  return false;
}

std::string build_flag_for(int capability) {
  return fmt::format("-DCMAKE_CUDA_ARCHITECTURES={}{}-real{}", capability,
                     capability == 90 ? "a" : "",
                     capability < 75 ? " and CUDA 12 (13 knows nothing before 7.5)" : "");
}

}  // namespace shoal::kernels
