// Where a rank's console is, and how a user stops the run from there.
#pragma once

#include <string>

#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/trainer/console.h"

namespace shoal::command {

// A line for the log; empty: Ctrl-C is enough.
std::string how_to_stop(const World& world);
// Ranks of mpirun write into pipes of its; it passes on what they write to stdout. So a progress
// bar goes there, between the other lines, if mpirun's stdout is a terminal.
ConsoleCallback::Options console_options(const World& world, bool quiet);

}  // namespace shoal::command
