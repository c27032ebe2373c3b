// Command line of shoal-collective-perf: nccl-tests' options under nccl-tests' names, and Shoal's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/operation.h"

namespace shoal::perf {

// Where the buffers are: the Communicator's own memory, memory registered with it, or any memory.
enum class Memory { symmetric, registered, user };
enum class Format { table, csv, json };
enum class Average { rank_0, mean, minimum, maximum };  // of the ranks' times; values of -a
// When a rank waits for its calls; values of -z. every_iteration: the time excludes the barrier.
enum class Blocking { at_the_end, every_call_and_barrier, every_call, every_iteration };

// One combination of -d, -o and -r.
struct Case {
  DType dtype = DType::f32;
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  int root = 0;
};

struct Options {
  collectives::Operation operation = collectives::Operation::all_reduce;
  std::int64_t min_bytes = 8, max_bytes = std::int64_t{64} << 20;
  double factor = 2;                // each size is the last one times `factor` ...
  std::int64_t step_bytes = 0;      // ... or, if not 0, plus `step_bytes`
  std::vector<std::int64_t> sizes;  // if not empty, exactly these
  std::int64_t iterations = 0;      // 0: about a fifth of a second
  std::int64_t warm_up = -1;        // -1: 20 below 1 MiB, 2 above; at least 50 ms
  std::int64_t together = 1;        // calls of an iteration
  std::int64_t cycles = 1;          // 0: until the program is killed
  std::vector<Case> cases;          // root -1: each rank in turn
  int threads = 1, gpus = 0;        // ranks of a process: threads x gpus. gpus 0: not given
  Memory memory = Memory::symmetric;
  Average average = Average::mean;
  Blocking blocking = Blocking::every_call;
  bool out_of_place = true, in_place = true;
  std::int64_t checks = 1;
  std::int64_t unalign = 0;  // index of the buffers' first element
  std::int64_t skip = 0;     // leading calls that `stats` leaves out
  bool stats = false, cpu_time = false, timestamps = false, explain = false;
  Format format = Format::table;
  std::string output_file;
  double goodput = 0;  // bytes per second that can leave a host; 0: unknown
  collectives::CommunicatorOptions communicator;
  std::vector<std::string> words;  // the command line
  std::vector<std::string> notes;  // what is not done as asked, and why
};

// Ranks of one process.
inline int ranks_here(const Options& options) {
  return options.threads * (options.gpus > 0 ? options.gpus : 1);
}

// Supported calls of an operation: out of place, in place.
struct Places {
  bool out = true, in = true;
};
Places places_of(collectives::Operation operation);

// nccl-tests' names: "float", "mulsum". name_of(operation): "all_reduce", "send_recv".
std::string_view name_of(DType dtype);
std::string_view name_of(collectives::ReduceOp op);
std::string_view name_of(collectives::Operation operation);

// Nullopt if help was requested and printed. Throws CLI::ParseError or invalid_argument.
std::optional<Options> parse(int argc, char** argv);

}  // namespace shoal::perf
