// The parts of a page, as HTML. Each draws one run or lays several over each other, and says in a
// line what no run has recorded.
#pragma once

#include <span>
#include <string>

#include "shoal/train/report/run_log.h"

namespace shoal::report {

using Runs = std::span<const RunLog>;

// Name, state and numbers of one run; of several a list of them.
std::string head_section(Runs runs);
// What was damaged or done twice in the files.
std::string remarks_section(Runs runs);
// Two runs: their last numbers beside each other, with differences; more: a column each.
std::string comparison_section(Runs runs);
std::string learning_section(Runs runs);
std::string speed_section(Runs runs);
std::string memory_section(Runs runs);
std::string evaluation_section(Runs runs);
// Of runs on different numbers of ranks; else empty.
std::string scaling_section(Runs runs);
// Options, what differs between runs, the head of the log, the machine.
std::string settings_section(Runs runs);

}  // namespace shoal::report
