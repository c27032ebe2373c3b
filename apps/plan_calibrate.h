// shoal plan calibrate.
#pragma once

#include "commands.h"

namespace shoal::app {

void add_plan_calibrate(CLI::App& plan, Action& action);

}  // namespace shoal::app
