// Combines mp_parameters (SMP's `parameters`) with the run's other options.
#pragma once

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/plan/legality.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// Call after finish(). Moves flat options of the plan into mp_parameters, and notes which
// overlapping options were given, so that an explicit value counts even if it is the default.
// Throws invalid_argument if a flat option and mp_parameters disagree.
void take_given(const OptionSet& options, TrainingArguments& arguments);

// Checks arguments and parses mp_parameters. Returns `arguments` with the values that mp_parameters
// set for precision, clipping, seed, recomputation and collectives, and with model_parallel.
// Resolved arguments are returned unchanged. Throws with every problem, one per line.
TrainingArguments resolve_arguments(TrainingArguments arguments);

// Sets the decision on bf16_auto in resolved arguments.
void settle_bf16(TrainingArguments& arguments, bool bf16);

// Options for a run's communicator: ddp_backend (else SHOAL_BACKEND), rules, fixed order. The
// caller that creates the kernels adds the stream. Takes resolved arguments. Throws
// invalid_argument for a pipeline over nccl.
collectives::CommunicatorOptions communicator_options(const TrainingArguments& arguments);

// The plan of resolved arguments as JSON, for checkpoints and a run's settings; {}: data
// parallelism.
nlohmann::json run_plan(const TrainingArguments& arguments);

// The run's shape, for check_layout(). `length`: positions of a sample; 0: unknown.
parallel::RunShape run_shape(const TrainingArguments& arguments, int ranks, std::int64_t length);

}  // namespace shoal
