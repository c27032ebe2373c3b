// Restores signal handling that a library changed while it was loaded. Debian's libfabric loads
// libinfinipath for PSM. That library handles SIGINT, SIGTERM and crash signals: it exits with
// status 1 without a message, and destroys data that threads still use.
#pragma once

namespace shoal {

// Call it first in main, before anything that restarts the program. Signals then end the program as
// usual. An ignored signal (nohup, a shell's background job) stays ignored.
//
// In a program that calls it, the signals that ask a program to end are blocked before any library
// is loaded. This call unblocks them, so a signal that arrived in between ends the program now.
void take_back_signals() noexcept;

}  // namespace shoal
