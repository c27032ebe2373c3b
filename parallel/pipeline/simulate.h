// Predicts times, bubble and peak activations of a schedule from the costs of its actions. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

// Costs of one stage for one microbatch, in any unit that is used throughout.
struct StageCosts {
  double forward = 1;
  double input_backward = 1, weight_backward = 1;  // a full backward takes their sum
  double activation = 1;                           // kept from the forward until the backward
  double weight_activation = 1;                    // kept from I until W if backward is split
};

struct PipelineCosts {
  std::vector<StageCosts> stages = std::vector<StageCosts>(1);  // one for all stages, or one each
  double message = 0;   // from when both sides are ready until the data has arrived
  double overhead = 0;  // added to each action's time on its rank
  const StageCosts& of(int stage) const {
    return stages[stages.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
  }
};

struct SimulatedAction {
  double begin = 0, end = 0;  // of a send or receive: when the rank posts it
};

struct Simulation {
  double time = 0;                      // until the last rank is done
  std::vector<double> busy;             // by rank: compute time, overheads included
  std::vector<double> peak_activation;  // by rank, in the unit of StageCosts::activation
  std::vector<int> peak_microbatches;   // by rank: most forwards whose backward is not done
  std::vector<std::vector<SimulatedAction>> actions;  // as in the schedule
  // Idle time relative to the busiest rank's computing time. With equal costs: (p-1)/m for GPipe
  // and 1F1B, (p-1)/(v m) with v virtual stages per rank.
  double bubble() const;
};

// Waiting for data is included. A message between two ranks begins when both sides have reached it
// and the previous message has arrived. The schedule must be valid (validate.h); if it cannot run
// to its end, this throws invalid_argument.
Simulation simulate(const Schedule& schedule, const PipelineCosts& costs = {});

// For each stage: the number of microbatches whose activations it keeps at the moment when all
// stages of its rank together keep the most; at least 1. For PartitionOptions::microbatches_kept.
std::vector<int> microbatches_kept(const Schedule& schedule);

// One line per rank, `width` characters wide: digits are forwards (the last digit of the
// microbatch), letters a, b, ... backwards, '=' weight gradients, '.' idle time.
std::string draw(const Schedule& schedule, const Simulation& simulation, int width = 100);

}  // namespace shoal::parallel
