// A job as a person reads it before it is created.
#pragma once

#include <string>

#include "submit_check.h"

namespace shoal::app {

// About ten lines: what runs where, on which data, for how long and at most for how much. Prices
// are those of the planner's built-in machines. Secrets are shown as ***.
std::string summary_of(const CheckedJob& checked);

}  // namespace shoal::app
