// mp_parameters (SMP's `parameters`) beside the run's other options.
#pragma once

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/plan/legality.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// After finish(): moves flat options of the plan into mp_parameters, and notes which options that
// these speak of too were given, so that a given value holds against them although it is the
// default. Throws invalid_argument where a flat option and mp_parameters disagree.
void take_given(const OptionSet& options, TrainingArguments& arguments);

// Checks arguments and reads mp_parameters: `arguments` with what these say of precision, clipping,
// seed, recomputation and collectives, and with model_parallel. Those that were resolved before
// come back as they are. Throws with every problem, one a line.
TrainingArguments resolve_arguments(TrainingArguments arguments);

// What bf16_auto comes to, in resolved arguments.
void settle_bf16(TrainingArguments& arguments, bool bf16);

// How a run's communicator is to be made: ddp_backend (else SHOAL_BACKEND), rules, fixed order; the
// stream is for whoever makes the kernels. Of resolved arguments. invalid_argument where a pipeline
// is to run over nccl.
collectives::CommunicatorOptions communicator_options(const TrainingArguments& arguments);

// The plan of resolved arguments as JSON, for checkpoints and a run's settings; {}: data
// parallelism.
nlohmann::json run_plan(const TrainingArguments& arguments);

// The run that a plan must fit, for check_layout(). `length`: positions of a sample; 0: not known.
parallel::RunShape run_shape(const TrainingArguments& arguments, int ranks, std::int64_t length);

}  // namespace shoal
