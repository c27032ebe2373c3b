// What fault_ranks and the test that starts it agree on.
#pragma once

#include <string_view>

namespace shoal::collectives {

// Seconds that operations of a scenario have: few where survivors wait for them, else many, so
// that whoever ends long before has not waited for them, on a busy machine too.
inline double deadline_of(std::string_view what) {
  return what == "stall" || what == "cut" ? 3.5 : 8;
}

}  // namespace shoal::collectives
