// Which algorithm an operation uses, by a table of rules in a grammar like that of UCC's TUNE:
//
//   rule#rule#…          rules are separated by # or line ends; // starts a comment
//   rule = field:field…  in any order, each at most once:
//     all_reduce,broadcast   operations; without: all
//     0-4k  1m-inf           bytes from (included) to (excluded) of the larger buffer
//     host symmetric cuda    where the buffers lie: inside a host, for what is not inline; ranks
//                            do not know of each other's memory otherwise
//     [2-8]  [4]             ranks, both ends included
//     {2-inf}  {1}           nodes, both ends included; {1}: shared memory
//     20  inf                score: the highest wins; 0 excludes; inf where the field is missing
//     @ring  @ring/256k      algorithm, and bytes of a message; without: the score is for all
//     ^ring                  the same as @ring:0
//
// Of the rules that fit, the last that speaks of an algorithm gives its score; of equal scores the
// later rule wins. The built-in table comes first, then SHOAL_COLLECTIVES, then the `collectives`
// option; @FILE instead of rules reads them from a file (shoal-collective-tune writes such ones).
//
// A group on several hosts, several ranks on each, asks first as a whole; @hierarchical then asks
// again for the ranks of a host, {1}, and for the rails, which have as many ranks as nodes.
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
  friend bool operator==(const Selection&, const Selection&) = default;
};

class AlgorithmSelector {
 public:
  AlgorithmSelector();  // the built-in table
  // Appends rules; "@FILE" names a file that holds them. Throws invalid_argument or not_found.
  void add(std::string_view rules, std::string source);
  // Throws invalid_argument when the rules exclude every candidate, naming the rules.
  Selection select(const SelectionFacts& facts, std::span<const Algorithm> candidates) const;
  // Bytes at which an answer may change: 0 and the ends of all ranges, ascending.
  std::vector<std::int64_t> borders() const;
  // All rules, one a line, each source headed by a comment; add() takes it back.
  std::string print() const;

 private:
  struct Sourced {
    Rule rule;
    std::string source;
  };
  std::vector<Sourced> rules_;
};

// The built-in table, then SHOAL_COLLECTIVES, then `option`. `ranks_on_host`: adds the built-in
// rules for so many ranks in shared memory; 0: none, for groups that do not use it.
AlgorithmSelector make_selector(std::string_view option, int ranks_on_host = 0);
// The rules themselves, read where `option` names a file; `source` for errors.
std::string rules_text(std::string_view option, const std::string& source);

// What messages between hosts offer for an operation (programs.h), what shared memory does (direct:
// the plan that the buffers allow), and what a group of several ranks on several hosts.
std::span<const Algorithm> candidates(Operation operation);
std::span<const Algorithm> shared_memory_candidates(Operation operation);
std::span<const Algorithm> levelled_candidates(Operation operation);
// Whichever of the three fits a group.
std::span<const Algorithm> offered(Operation operation, int ranks, int nodes);

// For default_table.cc.
std::string_view default_table();
std::string shared_memory_rules(int ranks);

}  // namespace shoal::collectives
