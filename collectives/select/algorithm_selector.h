// Chooses the algorithm of an operation by a table of rules. The grammar resembles UCC's TUNE:
//
//   rule#rule#…          rules are separated by # or line ends; // starts a comment
//   rule = field:field…  in any order, each at most once:
//     all_reduce,broadcast   operations; if omitted: all
//     0-4k  1m-inf           bytes of the larger buffer, from (included) to (excluded)
//     host symmetric cuda    memory of the buffers; known only inside a host and for operations
//                            that are not inline
//     [2-8]  [4]             ranks, both ends included
//     {2-inf}  {1}           nodes, both ends included; {1}: shared memory
//     20  inf                score: the highest wins; 0 excludes; if omitted: inf
//     @ring  @ring/256k      algorithm, and bytes per message; if omitted: all algorithms
//     ^ring                  the same as @ring:0
//
// For each algorithm, the last matching rule that names it (or names none) gives its score. The
// highest score wins; among equal scores, the later rule. The built-in table comes first, then
// SHOAL_COLLECTIVES, then the `collectives` option. "@FILE" in place of rules reads them from a
// file, such as shoal-collective-tune writes.
//
// A group of several hosts with several ranks each first selects for the whole group. If the answer
// is @hierarchical, it selects again for the ranks of one host, {1}, and for each rail, which has
// one rank per node.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/collectives/select/rule.h"

namespace shoal::collectives {

// Equal on all ranks.
struct SelectionFacts {
  Operation operation = Operation::all_reduce;
  std::int64_t bytes = 0;
  MemoryKind memory = MemoryKind::host;
  int ranks = 1, nodes = 1;
};

struct Selection {
  Algorithm algorithm = Algorithm::direct;
  std::int64_t slice = 0;  // bytes; 0: the executor's default
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
  // Byte sizes at which the answer may change: 0 and the bounds of all ranges, in ascending order.
  std::vector<std::int64_t> borders() const;
  // All rules, one a line, each source headed by a comment; add() parses the result.
  std::string print() const;

 private:
  struct Sourced {
    Rule rule;
    std::string source;
  };
  std::vector<Sourced> rules_;
};

// The built-in table, then SHOAL_COLLECTIVES, then `option`. `ranks_on_host` > 0 adds the built-in
// shared memory rules for that many ranks; 0: the group does not use shared memory.
AlgorithmSelector make_selector(std::string_view option, int ranks_on_host = 0);
// The text of the rules, read from the file if `option` names one; `source` is used in errors.
std::string rules_text(std::string_view option, const std::string& source);
// The FILE of "@FILE"; empty if `option` holds the rules themselves.
std::string rules_file(std::string_view option);

// Algorithms that an operation offers: with messages between hosts (programs.h), with shared memory
// (direct: whichever plan the buffers allow), and in a group of several hosts with several ranks
// each.
std::span<const Algorithm> candidates(Operation operation);
std::span<const Algorithm> shared_memory_candidates(Operation operation);
std::span<const Algorithm> levelled_candidates(Operation operation);
// The one of these three lists that applies to the group.
std::span<const Algorithm> offered(Operation operation, int ranks, int nodes);

// Defined in default_table.cc.
std::string_view default_table();
std::string shared_memory_rules(int ranks);

}  // namespace shoal::collectives
