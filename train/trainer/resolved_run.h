// The settings that follow from a run's arguments: mp_parameters (SMP's `parameters`) combined with
// the run's other options.
#pragma once

#include <memory>

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/plan/legality.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// Arguments that agree with each other. Precision, clipping, seed, recomputation and collectives
// have the values that mp_parameters set. The defaults are data parallelism.
struct ResolvedRun : TrainingArguments {
  std::shared_ptr<const parallel::SmpParameters> model_parallel;  // null: no mp_parameters
};

// Call after finish(). Moves flat options of the plan into mp_parameters, and notes which
// overlapping options were given, so that an explicit value counts even if it is the default.
// Throws invalid_argument if a flat option and mp_parameters disagree.
void take_given(const OptionSet& options, TrainingArguments& arguments);

// Checks arguments and parses mp_parameters. Throws with every problem, one per line.
ResolvedRun resolve_arguments(TrainingArguments arguments);
ResolvedRun resolve_arguments(const ResolvedRun&) = delete;  // is resolved

// Sets the decision on bf16_auto.
void settle_bf16(ResolvedRun& run, bool bf16);

// Options for a run's communicator: ddp_backend (else SHOAL_BACKEND), rules, fixed order. The
// caller that creates the kernels adds the stream. Throws invalid_argument for a pipeline over
// nccl.
collectives::CommunicatorOptions communicator_options(const ResolvedRun& run);

// The plan as JSON, for checkpoints and a run's settings; {}: data parallelism.
nlohmann::json run_plan(const ResolvedRun& run);

// The run's shape, for check_layout(). `length`: positions of a sample; 0: unknown.
parallel::RunShape run_shape(const TrainingArguments& arguments, int ranks, std::int64_t length);

}  // namespace shoal
