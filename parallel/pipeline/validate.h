// Checks that a schedule can run: every action is in its place and occurs once, sends match
// receives in order, nothing deadlocks, and activations stay within their bound.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

struct ScheduleFault {
  int rank = 0;
  int index = -1;  // in the rank's list; -1: an action is missing
  std::string message;
};

struct ValidationOptions {
  bool forward_only = false;  // no backwards are expected
  bool communication = true;  // sends and receives are expected
  int max_in_flight = 0;      // limit of forwards per rank whose backward is not done; 0: none
};

// All faults by rank; empty: the schedule is valid. Deadlock is checked only if there are no other
// faults.
std::vector<ScheduleFault> find_faults(const Schedule& schedule, const ValidationOptions& options);

// The lists side by side, one column per rank, with faulty actions in >angle< brackets and the
// faults below. Shows only rows near faults, or all if there are none.
std::string grid(const Schedule& schedule, std::span<const ScheduleFault> faults = {});

// Throws invalid_argument with the first fault and the grid around it.
void validate(const Schedule& schedule, const ValidationOptions& options);

}  // namespace shoal::parallel
