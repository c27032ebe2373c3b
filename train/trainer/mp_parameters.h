// mp_parameters (SMP's `parameters`) beside the run's other options.
#pragma once

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/apply/smp_parameters.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// Notes which options that mp_parameters speak of too were given, that a value that happens to be
// the default holds against them. After finish().
void note_given(const OptionSet& options, TrainingArguments& arguments);

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

// What a run with model_parallel asks for, for check_layout(). `length`: positions of a sample; 0:
// not known.
parallel::LayoutRequest mesh_layout(const TrainingArguments& arguments, int ranks,
                                    std::int64_t length);

}  // namespace shoal
