// The sections of a page, as HTML. Each shows one run or overlays several. One line names values
// that no run recorded.
#pragma once

#include <span>
#include <string>

#include "shoal/train/report/run_log.h"

namespace shoal::report {

using Runs = std::span<const RunLog>;

// Name, state and numbers of the run; several runs are listed.
std::string head_section(Runs runs);
// Damaged or repeated data in the files.
std::string remarks_section(Runs runs);
// Two runs: last numbers side by side with differences; more runs: one column each.
std::string comparison_section(Runs runs);
std::string learning_section(Runs runs);
std::string speed_section(Runs runs);
std::string memory_section(Runs runs);
// Processor, memory and network by rank; empty for runs that have not recorded them.
std::string machine_section(Runs runs);
std::string evaluation_section(Runs runs);
// Texts generated at several steps; empty for runs without samples.jsonl.
std::string samples_section(Runs runs);
// Predicted beside measured, for runs with a prediction; otherwise empty.
std::string forecast_section(Runs runs);
// For runs on different numbers of ranks; otherwise empty.
std::string scaling_section(Runs runs);
// Options, differences between runs, the head of the log, the machine.
std::string settings_section(Runs runs);

}  // namespace shoal::report
