// Runs a program to its end, with what it wrote and how it ended.
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
  bool left_core = false;           // the kernel made a core file of it
  double signalled = 0, ended = 0;  // seconds after the programs were started
};

struct ProgramOptions {
  std::string directory = {};                 // to run in; empty: here
  std::vector<std::string> environment = {};  // NAME=value, besides this process's
  long file_size_limit = 0;                   // bytes, as `ulimit -f`; 0: none
  double seconds = 60;                        // then it is killed
  std::string signal_when_out_has = {};       // send `signal` once this was printed,
  double signal_after = 0;                    // or after so many seconds; 0: not
  int signal = 15;
  std::function<bool()> signal_when = {};  // or once this holds
  // Of several programs, the one that is sent the signal; -1: all. Once the others have ended it is
  // killed.
  int signal_only = -1;
  bool core_files = false;  // as `ulimit -c unlimited`
};

ProgramResult run_program(const std::vector<std::string>& words,
                          const ProgramOptions& options = {});
// Several at once (ranks), each with the environment of its index besides.
std::vector<ProgramResult> run_programs(const std::vector<std::string>& words,
                                        const std::vector<std::vector<std::string>>& environments,
                                        const ProgramOptions& options = {});

}  // namespace shoal::test
