// Proves that a schedule can run: every action where it belongs, nothing missing or twice, each
// send met by its receive in the same order, no deadlock, activations within their bound.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

struct ScheduleFault {
  int rank = 0;
  int index = -1;  // of the action in the rank's list; -1: something is missing from it
  std::string message;
};

struct ValidationOptions {
  bool forward_only = false;  // no backwards are expected
  bool communication = true;  // sends and receives are expected
  int max_in_flight = 0;      // most forwards of a rank whose backward is not done; 0: any
};

// All faults, in the order of ranks; empty: the schedule is valid. Deadlock is looked for only
// where nothing else is wrong.
std::vector<ScheduleFault> find_faults(const Schedule& schedule, const ValidationOptions& options);

// The lists side by side, a column for each rank, with the faulty actions in >angle< brackets and
// the faults below. Only the rows around faults, unless there are none.
std::string grid(const Schedule& schedule, std::span<const ScheduleFault> faults = {});

// Throws invalid_argument with the first fault and the grid around it.
void validate(const Schedule& schedule, const ValidationOptions& options);

}  // namespace shoal::parallel
