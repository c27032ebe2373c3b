// Requirements of a run on its machine, derived only from its options.
#pragma once

#include "commands.h"
#include "run_setup.h"

namespace shoal::app {

TrainNeeds needs_of(const RunArguments& arguments);

}  // namespace shoal::app
