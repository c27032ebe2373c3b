// Runs a program to its end and returns its output and how it ended.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace shoal::test {

struct ProgramResult {
  int status = -1;  // exit status; -1: ended by `signal`
  int signal = 0;
  std::string out, err;
  int pid = -1;
  bool left_core = false;           // the kernel wrote a core file
  double signalled = 0, ended = 0;  // seconds after the programs were started
};

struct ProgramOptions {
  std::string directory = {};                 // working directory; empty: the current one
  std::vector<std::string> environment = {};  // NAME=value, besides this process's
  long file_size_limit = 0;                   // bytes, as `ulimit -f`; 0: none
  double seconds = 60;                        // then the program is killed
  std::string signal_when_out_has = {};       // sends `signal` once this was printed,
  double signal_after = 0;                    // or after this many seconds; 0: not
  int signal = 15;
  std::function<bool()> signal_when = {};  // or once this holds
  // If several programs run, the index of the one that gets the signal; -1: all. It is killed once
  // the others have ended.
  int signal_only = -1;
  bool core_files = false;  // as `ulimit -c unlimited`
};

ProgramResult run_program(const std::vector<std::string>& words,
                          const ProgramOptions& options = {});
// Runs several programs (ranks) at once. Each also gets the environment at its index.
std::vector<ProgramResult> run_programs(const std::vector<std::string>& words,
                                        const std::vector<std::vector<std::string>>& environments,
                                        const ProgramOptions& options = {});

}  // namespace shoal::test
