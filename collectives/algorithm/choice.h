// The names of algorithms. collectives/select decides which one an operation uses.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace shoal::collectives {

// These numbers travel in control messages: append only.
enum class Algorithm : std::uint8_t {
  automatic,
  direct,              // each rank reduces one shard over all ranks, then all shards are gathered
  ring,                // messages to neighbours only
  inlined,             // the data fits the control message (one host); every rank reduces all of it
  halving_doubling,    // Rabenseifner: exchanges ever smaller halves, then reassembles them
  recursive_doubling,  // exchanges the whole data with log2 n ranks in turn
  tree,                // binomial
  chain,               // a pipeline through all ranks
  sharded,             // broadcast: scatter + all_gather; reduce: reduce_scatter + gather
  bruck,               // all_gather in log2 steps for any number of ranks
  pairwise,            // all_to_all, one peer at a time
  dissemination,       // barrier
  hierarchical         // within nodes, then between them by shards, then within nodes again
};
std::string_view to_string(Algorithm algorithm);
// All but automatic, in the order of their numbers.
std::span<const Algorithm> all_algorithms();
// Parses a name as to_string() writes it; "" and "auto" give automatic. Anything else throws
// invalid_argument, naming the nearest name and all names.
Algorithm parse_algorithm(std::string_view text);

}  // namespace shoal::collectives
