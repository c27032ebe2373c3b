// One program, started and waited for.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "shoal/runtime/base/deadlines.h"

namespace shoal::sagemaker {

struct ProcessOptions {
  std::vector<std::string> environment = {};  // NAME=value, over this process's own
  std::string directory = {};                 // to run in; empty: here
  bool passes_on_errors = false;              // its standard error goes on to ours as it comes
  // Once non-zero, the program is sent `stop_with`, once. It then has `grace_seconds`, after which
  // its whole process group is killed. Null: nothing stops it.
  const std::atomic<int>* stop = nullptr;
  int stop_with = 15;
  std::function<int()> choose_stop = {};  // if any, says at that moment what to send instead
  double grace_seconds = deadlines::kSaveGrace;
  // If any, asked at each look; once true, the program is ended as having failed: SIGTERM, and
  // SIGKILL for its process group 10 s later.
  std::function<bool()> gives_up = {};
};

struct ProcessResult {
  int status = 0;             // exit status, or 128 + the signal that ended it
  std::string error;          // the end of what it wrote to standard error, at most 64 KiB
  bool was_stopped = false;   // `stop` was non-zero before it ended
  bool was_killed = false;    // the grace had passed
  bool was_given_up = false;  // gives_up was true before it ended
};

// Runs words[0] (searched for in PATH) to its end, in a process group of its own; its standard
// output is ours, its standard input empty. A program that cannot be started: unavailable, naming
// it. Blocks; polls fifty times a second.
ProcessResult run_process(const std::vector<std::string>& words,
                          const ProcessOptions& options = {});

// A program in PATH (or a path) that can be run.
bool is_program(const std::string& name);

}  // namespace shoal::sagemaker
