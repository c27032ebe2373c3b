// One HTML page of one run or several: style and drawings inside, nothing fetched, no script.
#pragma once

#include <span>
#include <string>

#include "shoal/train/report/run_log.h"

namespace shoal::report {

// `runs`: at least one. `program`: "shoal 0.1", for the foot of the page.
std::string page(std::span<const RunLog> runs, const std::string& program);

}  // namespace shoal::report
