// A policy's runs from every sample of a trace.
#pragma once

#include <cstddef>
#include <functional>

#include "shoal/parallel/predict/spot/replay.h"

namespace shoal::parallel {

struct SpotOutcome {
  std::size_t starts = 0, late = 0;  // runs, and those that miss the deadline if there is one
  SpotRun mean;
  double p95_cost = 0, p95_finish = 0, last_finish = 0;  // nearest rank
};

// `progress` is called after each run with the number of runs done. Throws as check_job().
SpotOutcome outcome(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy,
                    const std::function<void(std::size_t done)>& progress = {});

}  // namespace shoal::parallel
