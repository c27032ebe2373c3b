// Names the file where a mapped file's bytes cannot be read any more: it was cut short, or its disk
// fails. The kernel then sends SIGBUS.
#pragma once

namespace shoal {

// Call it first in main. Such a SIGBUS then ends the program with one line on standard error and
// status 1, instead of a bare signal.
void name_files_that_bus_errors_hit() noexcept;

}  // namespace shoal
