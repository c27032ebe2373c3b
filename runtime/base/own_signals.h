// Takes back the signals that a library took over while it was loaded. libinfinipath, which
// Debian's libfabric loads for PSM, takes SIGINT, SIGTERM and those of crashes: it exits with 1
// without a message, and destroys what threads still use. Its own start takes 0.2 s.
#pragma once

namespace shoal {

// Call it first in main, before anything that restarts the program. Signals then end the program as
// usual. An ignored signal (nohup, a shell's background job) stays ignored.
//
// In a program that calls it, the signals that ask a program to end are blocked before any library
// is loaded. This call lets them through: one that came meanwhile ends the program now.
void take_back_signals() noexcept;

}  // namespace shoal
