// Turns timings into rules. Pure, so that all ranks decide alike from the same numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collectives/select/algorithm_selector.h"

namespace shoal::tune {

using collectives::Algorithm;
using collectives::MemoryKind;
using collectives::Operation;

struct Choice {
  Algorithm algorithm = Algorithm::automatic;  // automatic: the table in force decides
  std::int64_t slice = 0;
  friend bool operator==(const Choice&, const Choice&) = default;
};
std::string to_string(const Choice& choice);  // "ring/256k", "default"

// Seconds per call of the slowest rank, by round. Candidates took turns in each round.
struct Timed {
  Choice choice;
  std::vector<double> seconds;
};
double median(std::vector<double> values);

// The candidate with the smallest median, if it beats the first one (the default) by `margin`
// (0.05: at least 5 % less time), and in three of four rounds. Among candidates within 1 %, the
// earlier wins.
std::optional<std::size_t> winner(const std::vector<Timed>& candidates, double margin);

// An operation and size for which another choice is faster than the default.
struct Gain {
  Operation operation = Operation::all_reduce;
  std::int64_t bytes = 0;
  std::optional<MemoryKind> memory;  // none: any
  int ranks = 1, nodes = 1;
  Choice choice;
  double default_seconds = 0, seconds = 0;
};

// Rules for `gains`, ordered by operation, memory and bytes. A rule extends from its size to the
// next larger of `sizes` (ascending); the largest size extends to twice itself, the smallest down
// to 0. Neighbours with the same choice are merged.
std::vector<collectives::Rule> rules_of(const std::vector<Gain>& gains,
                                        const std::vector<std::int64_t>& sizes);

}  // namespace shoal::tune
