// Reports which mapped file can no longer be read, because it was truncated or its disk failed. The
// kernel then sends SIGBUS.
#pragma once

namespace shoal {

// Call it first in main. Such a SIGBUS then ends the program with one line on standard error and
// status 1, instead of a bare signal.
void name_files_that_bus_errors_hit() noexcept;

}  // namespace shoal
