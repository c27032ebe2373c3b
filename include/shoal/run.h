// The main function of a program that runs on one rank or on many.
//
//   int main(int argc, char** argv) {
//     return shoal::run(argc, argv, {{"steps", "100", "number of updates"}}, [](shoal::Job& job) {
//       job.print("{} ranks, {} steps\n", job.ranks(), job.integer("steps"));
//     });
//   }
//
// Start the program directly (one rank), with mpirun, with srun, or with torchrun's variables.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal {

// An option of the program, given as `--name value`. `value` is its default.
struct Option {
  std::string name, value, help;
};

// This rank's part of the program: its place among the ranks, its device and memory, and its
// options. Owned by run(); used by one thread.
class Job {
 public:
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const;
  int ranks() const;
  // The communicator of all ranks. run() aborts it if `body` throws, so that no other rank waits
  // for this one.
  collectives::Communicator& communicator();
  // Memory that every rank of the host maps. Collectives on it need no copies.
  MemoryResource& symmetric_memory() { return communicator().memory_resource(); }

  // The value of an option. Throws invalid_argument if there is no such option, or if the value is
  // not a number.
  const std::string& text(std::string_view option) const;
  std::int64_t integer(std::string_view option) const;
  double number(std::string_view option) const;

  // Prints on rank 0 only.
  template <typename... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    if (rank() == 0) print_text(fmt::format(format, std::forward<Arguments>(arguments)...));
  }

  // The library's own part: device, memory and kernels. run() makes the Job.
  struct Parts;
  Job(std::vector<Option> options, std::vector<std::string> values, std::unique_ptr<Parts> parts);
  Parts& parts() { return *parts_; }

 private:
  void print_text(const std::string& text);

  std::vector<Option> options_;
  std::vector<std::string> values_;
  std::unique_ptr<Parts> parts_;
};

// Reads the options, connects the ranks and calls body(job) on each of them. Returns the exit
// status: 0 done, 1 failed, 2 wrong options, 3 bad input, 4 lack of memory or disk, 5 lost ranks.
// If ranks fail, one line on standard error names the rank and the cause. `--help` prints the
// options. Blocks until all ranks have finished.
int run(int argc, char** argv, const std::vector<Option>& options,
        const std::function<void(Job&)>& body);

// Trains, evaluates and predicts as the program `shoal train` does. `words` are its arguments:
// {"run.json", "--max_steps", "100"}. Returns its exit status: those of run(), or 128 + N if
// signal N stopped it. If ranks fail, one line on standard error says why. Reads only
// local data; the program also reads s3://. Every rank must call it first in main(), outside run().
// Blocks.
int train(const std::vector<std::string>& words);

}  // namespace shoal
