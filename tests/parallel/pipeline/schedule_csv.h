// Schedules as CSV, so that tests can write them down.
#pragma once

#include <string>
#include <string_view>

#include "shoal/parallel/pipeline/action.h"
#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

// The inverse of to_string(). Throws invalid_argument that names the error and shows how an action
// is written.
Action parse_action(std::string_view text);

// CSV: one line per rank, one cell per action, as PyTorch writes schedules. An empty cell is idle
// time and is ignored. Comments precede it: "# name: 1f1b", "# stages: 0 1 2 3" (the rank of each
// stage) and "# microbatches: 8". Without comments (PyTorch's files), a stage is on the rank whose
// line contains it. Throws invalid_argument with line and cell.
std::string to_csv(const Schedule& schedule);
Schedule parse_csv(std::string_view text);

}  // namespace shoal::parallel
