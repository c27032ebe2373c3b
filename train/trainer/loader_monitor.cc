#include "shoal/train/trainer/loader_monitor.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

constexpr double kWorthAHint = 0.2, kWorthALook = 0.01;  // shares of the window's time

std::string remedy(int workers, int cores) {
  if (workers < cores)
    return fmt::format(
        "raise dataloader_num_workers, which is {} ({} cores; more where samples come from slow "
        "storage)",
        workers, cores);
  return fmt::format(
      "dataloader_num_workers is {} on {} cores: more help where samples come from slow storage, "
      "else make samples cheaper (`shoal data prepare`)",
      workers, cores);
}

}  // namespace

std::string LoaderMonitor::look(const LoaderStatistics& now, int workers, int cores, double elapsed,
                                std::int64_t step) {
  const LoaderStatistics window = now - before_;
  const double seconds = std::max(elapsed - elapsed_, 1e-9);
  before_ = now;
  elapsed_ = elapsed;
  stall_seconds_ = window.stall_seconds;
  stall_share_ = std::min(1.0, window.stall_seconds / seconds);
  samples_per_second_ = window.samples_per_second(workers);
  if (windows_++ == 0 || hinted_ || stall_share_ < kWorthAHint) return {};
  hinted_ = true;
  return fmt::format(
      "hint: the loader is the bottleneck: up to step {} steps waited {:.0f} % of the time for "
      "data ({:.2f} of {:.2f} s); {}",
      step, stall_share_ * 100, stall_seconds_, seconds, remedy(workers, cores));
}

void LoaderMonitor::add_to(nlohmann::ordered_json& record) const {
  record["loader_stall_share"] = stall_share_;
  record["loader_samples_per_second"] = samples_per_second_;
}

void LoaderMonitor::add_to_line(nlohmann::ordered_json& record) const {
  if (stall_share_ >= kWorthALook) record["loader_stall_share"] = stall_share_;
}

}  // namespace shoal
