// Generators of schedules, as pure functions. Each gives compute actions; make_schedule() adds
// messages (schedule.h) and validates the result (validate.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"
#include "shoal/parallel/pipeline/schedule_kind.h"
#include "shoal/parallel/pipeline/simulate.h"

namespace shoal::parallel {

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::interleaved;
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;               // stages per rank; virtual_interleaved: any; zero_bubble_v: 2
  int group = 0;                // virtual_interleaved: consecutive microbatches per chunk; 0: ranks
  int active_microbatches = 0;  // interleaved: maximum in flight; 0: ranks + 2
  PipelineCosts costs = {};     // used to generate `interleaved`
  bool forward_only = false;
  int receive_ahead = 1;  // number of compute actions by which receives are posted early
  int stages() const { return ranks * chunks; }
};

// Throws if the options allow no valid schedule, with the numbers and a remedy.
Schedule make_schedule(const ScheduleOptions& options);

}  // namespace shoal::parallel
