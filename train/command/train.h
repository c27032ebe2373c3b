// `shoal train` as a function.
#pragma once

#include <string>
#include <vector>

#include "shoal/train/command/setup.h"

namespace shoal::command {

// Trains as `shoal train` does; `words` are its arguments: {"run.json", "--max_steps", "100"}.
// `add_sources` registers sources of data besides files. Returns the exit status:
// 0 done, 1 failed, 2 wrong options or data, 128 + N stopped by signal N. A failure is reported on
// standard error, one line on one rank. Every rank of the run calls it. Blocks.
int train(const std::vector<std::string>& words, const AddSources& add_sources);

}  // namespace shoal::command
