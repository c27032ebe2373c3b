// Which combinations of parallelism are tested: generated from axes, so that none is forgotten.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rig.h"

#include "shoal/parallel/plan/legality.h"

namespace shoal::parallel {

// The run that find_problems() is asked about; the plan is plan_of()'s.
RunShape run_of(const Layout& layout);
LayoutModel model_of(const Task& task);

struct LayoutSpace {
  // Models × meshes × schedules × microbatches × ways to hold activations × sharding ×
  // checkpoints and offloading × placements. Options that have no effect there take one value.
  std::vector<Layout> legal;
  // What was left out: how many models × meshes × schedules × microbatches × ways to hold
  // activations, by what find_problems() said (numbers as #).
  std::map<std::string, int> refused;
};
// Of meshes of up to 8 ranks; `small`: of 1, 2 and 4, and 2 x 2 x 2, with 2 or 4 microbatches.
LayoutSpace every_layout(bool small = false);

// Of the legal ones so many that any two axes take all values together that they take in any;
// `strength` 3: any three of rdp, pp, tp, schedule, way to hold activations, sharding, checkpoints
// and model, and each mesh with each value of every other axis. The same in every run.
std::vector<Layout> covering_layouts(const LayoutSpace& space, int strength);

}  // namespace shoal::parallel
