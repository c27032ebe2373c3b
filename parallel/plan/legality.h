// Checks whether a parallel plan is possible, before anything is built. All refusals are listed
// here. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/plan/parallel_plan.h"

namespace shoal::parallel {

// The properties of a run that a plan must fit.
struct RunShape {
  int ranks = 1;
  std::int64_t batch = 1;   // samples of a rank (with prescaled_batch: of a tensor-parallel group)
  int accumulated = 1;      // batches per step; each has plan.pipeline.microbatches
  std::int64_t length = 0;  // positions of a sample; 0: not known yet
};

// The properties of the model that matter here.
struct LayoutModel {
  int units = 1;  // Chain::units()
  // For tensor parallelism: common divisors of the heads and inner widths of all layers. 0: none.
  std::int64_t heads = 0, inner = 0;
};
// Reads these properties from a model whose parameters need no values yet. If layers differ, gives
// the greatest common divisor. Modules of kinds that a user registered check themselves.
LayoutModel layout_model(const nn::Chain& chain);

struct LayoutProblem {
  std::string what;  // the problem, with the numbers
  std::string remedy;
};

// All problems; empty: the layout is legal.
std::vector<LayoutProblem> find_problems(const ParallelPlan& plan, const RunShape& run,
                                         const LayoutModel& model);
// One line per option that changes nothing, or little, in this layout; and one line if gradients
// are summed over replicas although ddp is not given.
std::vector<std::string> find_idle_options(const ParallelPlan& plan, int ranks);
// Throws invalid_argument with every problem and its remedy, one per line.
void check_layout(const ParallelPlan& plan, const RunShape& run, const LayoutModel& model);

}  // namespace shoal::parallel
