// The names of algorithms. Which one an operation uses is decided by collectives/select.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace shoal::collectives {

// The numbers travel in control messages: append only.
enum class Algorithm : std::uint8_t {
  automatic,
  direct,   // each rank reduces its shard, which it takes from all ranks; all take all shards
  ring,     // neighbours only
  inlined,  // the data fits the control message (one host); every rank reduces all of it
  halving_doubling,    // Rabenseifner: halves of halves are exchanged, then put together again
  recursive_doubling,  // everything is exchanged with one rank after the other, log2 of them
  tree,                // binomial
  chain,               // a pipeline through all ranks
  sharded,             // broadcast: scatter + all_gather; reduce: reduce_scatter + gather
  bruck,               // all_gather in log2 steps for any number of ranks
  pairwise,            // all_to_all, one peer after the other
  dissemination,       // barrier
  hierarchical         // inside the nodes, between them shard by shard, inside again
};
std::string_view to_string(Algorithm algorithm);
// All but automatic, in the order of their numbers.
std::span<const Algorithm> all_algorithms();
// A name as to_string writes it, "" or "auto" for automatic; anything else throws
// invalid_argument, naming the nearest and all.
Algorithm parse_algorithm(std::string_view text);

}  // namespace shoal::collectives
