// Programs of one step of all_gather and reduce_scatter over hosts: this host's ranks meet those of
// another host at a distance. Each host's part of the whole buffer is a block; what a host holds of
// another's block lies with its ranks in equal shards, so that both sides of the exchange are
// balanced whatever the counts and the sizes of the hosts.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/collectives/algorithm/program.h"
#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/hierarchical/placement.h"

namespace shoal::collectives {

class Blocks {
 public:
  // `counts`: elements of each rank, packed in rank order. The placement must be contiguous.
  Blocks(const Placement& where, std::vector<std::int64_t> counts);

  Range part(int rank) const;   // a rank's own elements
  Range block(int node) const;  // those of a host's ranks
  // The piece of `block(of)` that lies with local rank `local` of host `at`.
  Range shard_at(int of, int at, int local) const;

  // Distance d (1 to nodes - 1) of an all_gather, for `rank`: sends its part to those of the host d
  // ahead, and receives its shard of the block of the host d behind. Input: its part; output: the
  // whole buffer. Ordinals are 0: each pair meets once a distance at most in each direction.
  Program gather_step(int rank, int distance) const;
  // The reverse, of a reduce_scatter: sends its shard of the block of the host d ahead (scratch of
  // the caller, given as input) to the ranks whose parts it overlaps, and receives from those of
  // the host d behind what they have of its part. Output: its part.
  Program scatter_step(int rank, int distance) const;

 private:
  const Placement& where_;
  std::vector<std::int64_t> starts_;  // by rank, and the end
};

}  // namespace shoal::collectives
