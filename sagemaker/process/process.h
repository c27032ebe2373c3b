// Starts a program and waits for it.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "shoal/runtime/base/deadlines.h"

namespace shoal::sagemaker {

struct ProcessOptions {
  std::vector<std::string> environment = {};  // NAME=value, overriding this process's variables
  std::string directory = {};                 // working directory; empty: the current one
  std::string output = {};        // a new file for its standard output; empty: this process's
  bool passes_on_errors = false;  // copies its standard error to ours as it arrives
  // Once non-zero, the program gets the signal `stop_with`. If that is SIGUSR1, it is repeated
  // every `repeat_seconds`, because a busy mpirun sometimes forwards it to no rank. After
  // `grace_seconds` the program's whole process group is killed. Null: never stopped.
  const std::atomic<int>* stop = nullptr;
  int stop_with = 15;
  std::function<int()> choose_stop = {};  // chooses the signal to send instead, if set
  double repeat_seconds = 5;
  double grace_seconds = deadlines::kSaveGrace;
  // If set, polled; once true, the program is ended as failed: SIGTERM, then SIGKILL for its
  // process group after deadlines::kGivenUp.
  std::function<bool()> gives_up = {};
};

struct ProcessResult {
  int status = 0;             // exit status, or 128 + the signal that ended it
  std::string error;          // the end of what it wrote to standard error, at most 64 KiB
  bool was_stopped = false;   // `stop` was non-zero before it ended
  bool was_killed = false;    // SIGKILL was sent after the grace period
  bool was_given_up = false;  // gives_up returned true before it ended
};

// Runs words[0] (searched in PATH) to its end, in its own process group. It shares this process's
// standard output unless `output` is set; its standard input is empty. Throws unavailable, naming
// the program, if it cannot be started. Blocks; polls fifty times a second.
ProcessResult run_process(const std::vector<std::string>& words,
                          const ProcessOptions& options = {});

// True if `name` is an executable in PATH (or a path).
bool is_program(const std::string& name);

}  // namespace shoal::sagemaker
