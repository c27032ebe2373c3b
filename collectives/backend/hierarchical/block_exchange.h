// Programs of one step of all_gather and reduce_scatter over hosts: this host's ranks meet those of
// another host at a distance. Each host's part of the whole buffer is a block; what a host holds of
// another's block lies with its ranks in equal shards, so that both sides of the exchange are
// balanced whatever the counts and the sizes of the hosts. Each block is cut into as many pieces,
// so that a piece can be passed on (or summed up) in the host while the next are on the wire.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/collectives/algorithm/program.h"
#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/hierarchical/placement.h"

namespace shoal::collectives::hierarchical {

class Blocks {
 public:
  // `counts`: elements of each rank, packed in rank order. The placement must be contiguous.
  // `pieces` of a block: at least 1.
  Blocks(const Placement& where, std::vector<std::int64_t> counts, int pieces);

  int pieces() const { return pieces_; }
  // The order in which all ranks take the pieces of a block: those that lie with different ranks of
  // its host follow each other, so that all of them send (over their own rails).
  int piece_in_turn(int turn) const;

  algorithm::Range part(int rank) const;   // a rank's own elements
  algorithm::Range block(int node) const;  // those of a host's ranks
  algorithm::Range piece(int node, int index) const;
  // What lies with local rank `local` of host `at` of a piece of `block(of)`.
  algorithm::Range shard_at(int of, int at, int local, int index) const;

  // Distance d (1 to nodes - 1) of an all_gather, for `rank`: sends what it has of the piece to
  // those of the host d ahead, and receives its shard of that piece of the host d behind. Input:
  // its part; output: the whole buffer. Ordinals are 0: each pair meets once at most in each
  // direction.
  algorithm::Program gather_step(int rank, int distance, int index) const;
  // The reverse, of a reduce_scatter: sends its shard of the piece of the host d ahead (scratch of
  // the caller, given as input) to the ranks whose parts it overlaps, and receives from those of
  // the host d behind what they have of its part in that piece. Output: its part.
  algorithm::Program scatter_step(int rank, int distance, int index) const;

 private:
  const Placement& where_;
  std::vector<std::int64_t> starts_;  // by rank, and the end
  int pieces_;
};

}  // namespace shoal::collectives::hierarchical
