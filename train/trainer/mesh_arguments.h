// mp_parameters: SMP's `parameters`, as far as the trainer takes them.
#pragma once

#include <nlohmann/json.hpp>

#include "shoal/parallel/apply/legality.h"
#include "shoal/parallel/apply/parallel_model.h"
#include "shoal/parallel/mesh/placement.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

struct MeshArguments {
  int pipeline = 1, tensor = 1;
  parallel::Placement placement = {};
  parallel::ScheduleKind schedule = parallel::ScheduleKind::interleaved;
  int chunks = 1, microbatches = 1;
  int active_microbatches = 0;
  bool prescaled_batch = false, speed = false;
  bool offload_activations = false;
  int activation_loading_horizon = 4;
};

// Throws invalid_argument with every problem, one a line.
MeshArguments parse_mesh_arguments(const nlohmann::json& json);
// What a run asks for, for check_layout(). `length`: positions of a sample; 0: not known.
parallel::LayoutRequest mesh_layout(const TrainingArguments& arguments, const MeshArguments& mesh,
                                    int ranks, std::int64_t length);

}  // namespace shoal
