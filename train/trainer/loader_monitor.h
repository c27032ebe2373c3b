// Checks whether the loader keeps up with the steps: values for each log line, and a hint if it
// does not.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "shoal/train/data/loader.h"

namespace shoal {

// For rank 0's own loader. One thread.
class LoaderMonitor {
 public:
  // Ends a window at a log line. `elapsed`: seconds since training began. Returns a hint, once per
  // run, if a window after the first spent more than a fifth of its time waiting; otherwise empty.
  // The first window includes the start, which no loader could hide.
  std::string look(const LoaderStatistics& now, int workers, int cores, double elapsed,
                   std::int64_t step);
  // Adds values of the window that look() ended last:
  //   loader_stall_share         share of the window, 0 to 1, in which steps waited for batches
  //                              (without workers: made them); evaluation and checkpoints count
  //   loader_samples_per_second  rate of the loader while nothing makes it wait
  void add_to(nlohmann::ordered_json& record) const;
  // For a printed line: only the share, if it is at least 1 %.
  void add_to_line(nlohmann::ordered_json& record) const;

 private:
  LoaderStatistics before_;
  double elapsed_ = 0;
  std::int64_t windows_ = 0;
  bool hinted_ = false;
  double stall_seconds_ = 0, stall_share_ = 0, samples_per_second_ = 0;
};

}  // namespace shoal
