// Deadlines that fault_ranks shares with the test that starts it.
#pragma once

#include <string_view>

namespace shoal::collectives {

// Seconds that a scenario's operations have. They are few if survivors must wait for the deadline.
// Otherwise they are many, so that a survivor that ends much earlier cannot have waited, even on a
// busy machine.
inline double deadline_of(std::string_view what) {
  return what == "stall" || what == "cut" ? 3.5 : 8;
}

}  // namespace shoal::collectives
