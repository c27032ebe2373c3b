// Which combinations of parallelism there are, before anything is built: the one list of what is
// refused. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/pipeline/generate.h"

namespace shoal::parallel {

// What a run asks for.
struct LayoutRequest {
  int ranks = 1, pipeline = 1, tensor = 1;
  std::optional<bool> ddp = true;  // gradients of replicas are summed; nothing: not said
  ScheduleKind schedule = ScheduleKind::interleaved;
  int chunks = 1, microbatches = 1, active_microbatches = 0;
  std::int64_t batch = 1;   // samples of a rank (prescaled_batch: of a tensor-parallel group)
  int accumulated = 1;      // such batches a step, each of so many microbatches
  std::int64_t length = 0;  // positions of a sample; 0: not known yet
  bool prescaled_batch = false;
  bool speed = false;      // optimize = speed
  int sharding = 0;        // 0; optimizer state 1, gradients 2, parameters 3
  int sharded_degree = 0;  // over how many data-parallel ranks; 0: all
  bool checkpointing = false, offloading = false;
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
std::vector<LayoutProblem> find_problems(const LayoutRequest& request, const LayoutModel& model);
// What is given but has no effect there, or has one that was not asked for; a line each.
std::vector<std::string> find_idle_options(const LayoutRequest& request);
// Throws invalid_argument with every problem and its remedy, a line each.
void check_layout(const LayoutRequest& request, const LayoutModel& model);

}  // namespace shoal::parallel
