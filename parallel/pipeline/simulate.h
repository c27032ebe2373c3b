// What a schedule costs, before it is run: times, bubble and peak activations from the costs of
// each action. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"

namespace shoal::parallel {

// Of one stage, for one microbatch. Any unit, the same everywhere.
struct StageCosts {
  double forward = 1;
  double input_backward = 1, weight_backward = 1;  // a full backward takes their sum
  double activation = 1;                           // kept from the forward until the backward
  double weight_activation = 1;                    // kept from I until W where backward is split
};

struct PipelineCosts {
  std::vector<StageCosts> stages = std::vector<StageCosts>(1);  // one for all, or one for each
  double message = 0;   // from the moment when both sides are ready until the data is there
  double overhead = 0;  // of each action, on its rank
  const StageCosts& of(int stage) const {
    return stages[stages.size() == 1 ? 0 : static_cast<std::size_t>(stage)];
  }
};

struct SimulatedAction {
  double begin = 0, end = 0;  // of a message: when it was handed over
};

struct Simulation {
  double time = 0;                      // until the last rank is done
  std::vector<double> busy;             // by rank: computing, overheads included
  std::vector<double> peak_activation;  // by rank, in StageCosts::activation's unit
  std::vector<int> peak_microbatches;   // by rank: forwards whose backward is not done
  std::vector<std::vector<SimulatedAction>> actions;  // as in the schedule
  // Idle time of all ranks over all time, (p-1)/(m+p-1) for GPipe and 1F1B with equal costs...
  double idle_share() const;
  // ... and over the time that the busiest rank computes: (p-1)/m there, (p-1)/(v m) interleaved.
  double bubble() const;
};

// Every wait for data counts; a message between two ranks begins when both sides have come to it
// and the one before it has arrived. The schedule must be valid (validate.h); one that cannot run
// to its end throws invalid_argument.
Simulation simulate(const Schedule& schedule, const PipelineCosts& costs = {});

// By stage, microbatches whose activations it keeps when its rank keeps the most of all its stages
// (at least one): PartitionOptions::microbatches_kept.
std::vector<int> microbatches_kept(const Schedule& schedule);

// A line for each rank, `width` characters wide: digits are forwards (the microbatch's last digit),
// letters a, b ... backwards, '=' weight gradients, '.' idle.
std::string draw(const Schedule& schedule, const Simulation& simulation, int width = 100);

}  // namespace shoal::parallel
