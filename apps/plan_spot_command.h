// `shoal plan spot`, a subcommand of `shoal plan`.
#pragma once

#include "commands.h"

namespace shoal::app {

void add_plan_spot(CLI::App& plan, Action& action);

}  // namespace shoal::app
