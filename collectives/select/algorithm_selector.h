// Which algorithm an operation uses, by a table of rules in a grammar like that of UCC's TUNE:
//
//   rule#rule#…          rules are separated by # or line ends; // starts a comment
//   rule = field:field…  in any order, each at most once:
//     all_reduce,broadcast   operations; without: all
//     0-4k  1m-inf           bytes from (included) to (excluded) of the larger buffer
//     host symmetric cuda    where the buffers lie
//     [2-8]  [4]             ranks, both ends included
//     {2-inf}  {1}           nodes, both ends included
//     20  inf                score: the highest wins; 0 excludes; inf where the field is missing
//     @ring  @ring/256k      algorithm, and bytes of a message; without: the score is for all
//     ^ring                  the same as @ring:0
//
// Of the rules that fit, the last that speaks of an algorithm gives its score; of equal scores the
// later rule wins. The built-in table comes first, then SHOAL_COLLECTIVES, then the `collectives`
// option; @FILE instead of rules reads them from a file.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/collectives/select/rule.h"

namespace shoal::collectives {

// The same on all ranks.
struct SelectionFacts {
  Operation operation = Operation::all_reduce;
  std::int64_t bytes = 0;
  MemoryKind memory = MemoryKind::host;
  int ranks = 1, nodes = 1;
};

struct Selection {
  Algorithm algorithm = Algorithm::direct;
  std::int64_t slice = 0;  // bytes; 0: as the executor likes
  std::string why;         // "built-in: all_reduce:0-16k:20:@recursive_doubling"
};

class AlgorithmSelector {
 public:
  AlgorithmSelector();  // the built-in table
  // Appends rules; "@FILE" names a file that holds them. Throws invalid_argument or not_found.
  void add(std::string_view rules, std::string source);
  // Throws invalid_argument when the rules exclude every candidate, naming the rules.
  Selection select(const SelectionFacts& facts, std::span<const Algorithm> candidates) const;
  // All rules, one a line, each source headed by a comment; add() takes it back.
  std::string print() const;

 private:
  struct Sourced {
    Rule rule;
    std::string source;
  };
  std::vector<Sourced> rules_;
};

// The built-in table, then SHOAL_COLLECTIVES, then `option`.
AlgorithmSelector make_selector(std::string_view option);

// What messages between hosts offer for an operation (programs.h).
std::span<const Algorithm> candidates(Operation operation);

// For default_table.cc.
std::string_view default_table();

}  // namespace shoal::collectives
