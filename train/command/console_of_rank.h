// A rank's terminal, and how a user stops the run from there.
#pragma once

#include <string>

#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/trainer/console.h"

namespace shoal::command {

// Under mpirun, a line that tells the user how to stop early; otherwise empty.
std::string how_to_stop(const World& world);
// Decides where a progress bar is drawn. mpirun forwards its ranks' stdout between its own lines,
// so a bar goes to stdout if mpirun's stdout is a terminal.
ConsoleCallback::Options console_options(const World& world, bool quiet);

}  // namespace shoal::command
