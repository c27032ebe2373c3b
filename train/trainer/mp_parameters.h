// mp_parameters (SMP's `parameters`) beside the run's other options.
#pragma once

#include "shoal/parallel/apply/smp_parameters.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// Throws invalid_argument with every problem, one a line. `ranks` 0: not known yet.
parallel::SmpParameters read_mp_parameters(const TrainingArguments& arguments, int ranks = 0);
// `arguments` with what mp_parameters say of precision, clipping, seed, recomputation and
// collectives. Where there are none, or no others than it has already, the same.
TrainingArguments with_mp_parameters(TrainingArguments arguments);
// What the run asks for, for check_layout(). `length`: positions of a sample; 0: not known.
parallel::LayoutRequest mesh_layout(const TrainingArguments& arguments,
                                    const parallel::SmpParameters& parameters, int ranks,
                                    std::int64_t length);

}  // namespace shoal
