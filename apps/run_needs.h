// What a run asks of the machine it runs on, from its options alone.
#pragma once

#include "commands.h"
#include "run_setup.h"

namespace shoal::app {

TrainNeeds needs_of(const RunArguments& arguments);

}  // namespace shoal::app
