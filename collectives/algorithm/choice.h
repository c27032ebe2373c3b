// Which all_reduce: the choice every rank makes alike from what the control messages say.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::collectives {

enum class Algorithm : std::uint8_t {
  automatic,
  direct,  // each rank reduces its shard by loading from all ranks, all ranks take all shards
  ring,    // neighbours only; 16-bit floats travel as f32 while they are partial sums
  inlined  // the data fits the control message; every rank reduces all of it
};
std::string_view to_string(Algorithm algorithm);
// "", "direct", "ring"; anything else throws invalid_argument, naming the choices.
Algorithm parse_algorithm(std::string_view text);

struct AllReduceFacts {
  std::int64_t bytes = 0;
  int ranks = 1;
  bool symmetric = false;  // every rank's buffers are
  Algorithm forced = Algorithm::automatic;
};
Algorithm choose_all_reduce(const AllReduceFacts& facts, std::int64_t inline_capacity);

}  // namespace shoal::collectives
