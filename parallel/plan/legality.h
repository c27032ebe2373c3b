// Which combinations of parallelism there are, before anything is built: the one list of what is
// refused. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/plan/parallel_plan.h"

namespace shoal::parallel {

// The part of a run that a plan must fit.
struct RunShape {
  int ranks = 1;
  std::int64_t batch = 1;   // samples of a rank (prescaled_batch: of a tensor-parallel group)
  int accumulated = 1;      // such batches a step, each of plan.pipeline.microbatches
  std::int64_t length = 0;  // positions of a sample; 0: not known yet
};

// What of the model matters.
struct LayoutModel {
  int units = 1;  // Chain::units()
  // Of every attention and MLP: what tensor parallelism divides. 0: there is none.
  std::int64_t heads = 0, inner = 0;
};
// Of a model that is not built yet: its modules are there, their parameters need no values. Where
// layers differ, the greatest common divisor. Kinds that a user registered check themselves.
LayoutModel layout_model(const nn::Chain& chain);

struct LayoutProblem {
  std::string what;  // with the numbers
  std::string remedy;
};

// All of them; empty: the layout is legal.
std::vector<LayoutProblem> find_problems(const ParallelPlan& plan, const RunShape& run,
                                         const LayoutModel& model);
// What is given but has no effect there, or has one that was not asked for; a line each.
std::vector<std::string> find_idle_options(const ParallelPlan& plan, int ranks);
// Throws invalid_argument with every problem and its remedy, a line each.
void check_layout(const ParallelPlan& plan, const RunShape& run, const LayoutModel& model);

}  // namespace shoal::parallel
