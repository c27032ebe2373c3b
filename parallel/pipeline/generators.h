// One function per family of schedules; each returns compute actions by rank. For make_schedule()
// only.
#pragma once

#include <vector>

#include "shoal/parallel/pipeline/generate.h"

namespace shoal::parallel {

using ComputeLists = std::vector<std::vector<Action>>;

ComputeLists simple_lists(const ScheduleOptions& options);
ComputeLists interleaved_lists(const ScheduleOptions& options);
ComputeLists one_f_one_b_lists(const ScheduleOptions& options);  // several chunks: virtual stages
ComputeLists zero_bubble_lists(const ScheduleOptions& options);
ComputeLists zero_bubble_v_lists(const ScheduleOptions& options);

}  // namespace shoal::parallel
