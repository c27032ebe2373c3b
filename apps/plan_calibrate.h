// shoal plan calibrate, and shoal plan --fit.
#pragma once

#include <string>

#include "commands.h"

namespace shoal::app {

void add_plan_calibrate(CLI::App& plan, Action& action);
// Writes `machine`, a file, as `run`, an output_dir, measured it, to `out`. Throws invalid_argument
// if the run was predicted with another machine or with none.
int fit_plan_machine(const std::string& run, const std::string& machine, const std::string& out);

}  // namespace shoal::app
