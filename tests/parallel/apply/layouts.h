// The combinations of parallelism to test, generated from axes so that none is forgotten.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rig.h"

#include "shoal/parallel/plan/legality.h"

namespace shoal::parallel {

// The run for find_problems(). Its plan is plan_of()'s.
RunShape run_of(const Layout& layout);
LayoutModel model_of(const Task& task);

struct LayoutSpace {
  // Models × meshes × schedules × microbatches × ways to hold activations × sharding ×
  // checkpoints and offloading × placements. Options that have no effect there take one value.
  std::vector<Layout> legal;
  // The refused combinations: the number of models × meshes × schedules × microbatches × ways to
  // hold activations, by the text of find_problems() (with numbers as #).
  std::map<std::string, int> refused;
};
// Layouts of all meshes of up to 8 ranks. `small`: meshes of 1, 2 and 4 ranks and 2 x 2 x 2, with
// 2 or 4 microbatches.
LayoutSpace every_layout(bool small = false);

// A selection of the legal layouts in which any two axes take every pair of values that occurs at
// all. `strength` 3: the same for any three of rdp, pp, tp, schedule, way to hold activations,
// sharding, checkpoints and model, and each mesh occurs with each value of every other axis. The
// selection is the same in every run.
std::vector<Layout> covering_layouts(const LayoutSpace& space, int strength);

}  // namespace shoal::parallel
