// One HTML page about one run or several. Style and drawings are inline; the page has no scripts
// and fetches nothing.
#pragma once

#include <span>
#include <string>

#include "shoal/train/report/run_log.h"

namespace shoal::report {

// `runs`: at least one. `program`: "shoal 0.1", for the footer.
std::string page(std::span<const RunLog> runs, const std::string& program);

}  // namespace shoal::report
