// Command line of shoal-collective-perf. Uses nccl-tests' option letters where possible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/operation.h"

namespace shoal::perf {

enum class Memory { symmetric, user };

struct Options {
  collectives::Operation operation = collectives::Operation::all_reduce;
  std::int64_t min_bytes = 8, max_bytes = std::int64_t{64} << 20;
  double factor = 2;                // each size is the last one times `factor` ...
  std::int64_t step_bytes = 0;      // ... or, if not 0, plus `step_bytes`
  std::vector<std::int64_t> sizes;  // if not empty, exactly these
  std::int64_t iterations = 0;      // 0: about a fifth of a second
  std::int64_t warm_up = -1;        // -1: 20 below 1 MiB, 2 above; at least 50 ms
  DType dtype = DType::f32;
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  int root = 0;
  Memory memory = Memory::symmetric;
  bool out_of_place = true, in_place = true;
  bool check = true;
  bool json = false, explain = false;
  double goodput = 0;  // bytes per second that can leave a host; 0: unknown
  collectives::CommunicatorOptions communicator;
};

// Supported calls of an operation: out of place, in place.
struct Places {
  bool out = true, in = true;
};
Places places_of(collectives::Operation operation);

// Nullopt if help was requested and printed. Throws CLI::ParseError or invalid_argument.
std::optional<Options> parse(int argc, char** argv);

}  // namespace shoal::perf
