// Checks whether the loader keeps up with the steps: values for each log line, and a hint if it
// does not.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "shoal/train/data/loader.h"

namespace shoal {

// For rank 0's loader. Not thread-safe.
class LoaderMonitor {
 public:
  // Ends a measurement window; called at each log line. `elapsed`: seconds since training began.
  // Returns a hint, once per run, if a window after the first spent more than a fifth of its time
  // waiting; otherwise empty. The first window is exempt because it includes the loader's start.
  std::string look(const LoaderStatistics& now, int workers, int cores, double elapsed,
                   std::int64_t step);
  // Adds values of the last window:
  //   loader_stall_share         share, 0 to 1, of the window that steps spent waiting for batches
  //                              (without workers: making them). The window includes evaluation
  //                              and checkpoints.
  //   loader_samples_per_second  the loader's rate while nothing blocks it
  void add_to(nlohmann::ordered_json& record) const;
  // Adds to a printed line only the share, if it is at least 1 %.
  void add_to_line(nlohmann::ordered_json& record) const;

 private:
  LoaderStatistics before_;
  double elapsed_ = 0;
  std::int64_t windows_ = 0;
  bool hinted_ = false;
  double stall_seconds_ = 0, stall_share_ = 0, samples_per_second_ = 0;
};

}  // namespace shoal
