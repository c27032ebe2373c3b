// From timings to rules: pure arithmetic, so that every rank, given the same numbers, decides
// alike.
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
  Algorithm algorithm = Algorithm::automatic;  // automatic: what the table in force says
  std::int64_t slice = 0;
  friend bool operator==(const Choice&, const Choice&) = default;
};
std::string to_string(const Choice& choice);  // "ring/256k", "default"

// Seconds of a call of the slowest rank, by round; rounds of all candidates took turns.
struct Timed {
  Choice choice;
  std::vector<double> seconds;
};
double median(std::vector<double> values);

// The candidate with the smallest median, if it beats the first one (the default) by `margin`
// (0.05: at least 5 % less time) and in three rounds of four. Of candidates within 1 % the earlier
// wins.
std::optional<std::size_t> winner(const std::vector<Timed>& candidates, double margin);

// One operation at one size that another choice than the default suits better.
struct Gain {
  Operation operation = Operation::all_reduce;
  std::int64_t bytes = 0;
  std::optional<MemoryKind> memory;  // none: any
  int ranks = 1, nodes = 1;
  Choice choice;
  double default_seconds = 0, seconds = 0;
};

// Rules for `gains`, in the order of operation, memory and bytes. A rule reaches from its size to
// the next larger of `sizes` (ascending), the last to twice its own, the first of all down to 0
// where its size is the smallest; neighbours of one choice become one rule.
std::vector<collectives::Rule> rules_of(const std::vector<Gain>& gains,
                                        const std::vector<std::int64_t>& sizes);

}  // namespace shoal::tune
