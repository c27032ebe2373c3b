// Plays many seeds of the simulated cluster in child processes: what killed ranks leave behind ends
// with them, and a crash is a failure of its seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/simulation/cluster.h"

namespace shoal::simulation {

struct SeedResult {
  std::uint64_t seed = 0, hash = 0, steps = 0;
  std::string failure;  // empty: as it should be
};

// Plays the seeds from `first`, in order of their numbers, on `jobs` processes at a time.
std::vector<SeedResult> play_seeds(std::uint64_t first, std::uint64_t count, int jobs);

}  // namespace shoal::simulation
