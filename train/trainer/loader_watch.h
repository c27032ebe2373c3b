// Whether the loader keeps up with the steps: numbers for each log line, and a hint where it does
// not.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "shoal/train/data/loader.h"

namespace shoal {

// Of rank 0's own loader. One thread.
class LoaderWatch {
 public:
  // A line of the log ends a window. `elapsed`: seconds since training began. Gives a hint, once a
  // run, where the window after the first (whose start nobody could have hidden) waited for more
  // than a fifth of its time; else nothing.
  std::string look(const LoaderStatistics& now, int workers, int cores, double elapsed,
                   std::int64_t step);
  // Of the window that look() ended last:
  //   loader_stall_share         of the window's time (evaluation and checkpoints too) that steps
  //                              waited for batches, 0 to 1; without workers, that they made them
  //   loader_samples_per_second  what the loader makes while nothing keeps it waiting
  void add_to(nlohmann::ordered_json& record) const;
  // To a line that people read: the share alone, where it is worth a look (1 % or more).
  void add_to_line(nlohmann::ordered_json& record) const;

 private:
  LoaderStatistics before_;
  double elapsed_ = 0;
  std::int64_t windows_ = 0;
  bool hinted_ = false;
  double stall_seconds_ = 0, stall_share_ = 0, samples_per_second_ = 0;
};

}  // namespace shoal
