// Command line of shoal-collective-tune.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/select/rule.h"

namespace shoal::tune {

struct Options {
  std::vector<collectives::Operation> operations;
  std::vector<std::int64_t> sizes;  // ascending
  std::vector<collectives::MemoryKind> memory;
  std::vector<std::int64_t> slices;  // message bytes between hosts, tried with the best algorithm
  int rounds = 9;
  double margin = 0.05;
  std::string output;  // file of the table; empty: standard output
  bool json = false, print = false, quiet = false;
  collectives::CommunicatorOptions communicator;
};

// Nullopt if help was requested and printed. Throws CLI::ParseError or invalid_argument.
std::optional<Options> parse(int argc, char** argv);

}  // namespace shoal::tune
