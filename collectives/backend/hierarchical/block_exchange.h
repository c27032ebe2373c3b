// Programs for all_gather and reduce_scatter over hosts. In one step, this host's ranks exchange
// with the ranks of the host at a given distance. Each host's part of the whole buffer is a block.
// A host's copy of another host's block is spread over its ranks in equal shards, which balances
// both sides for any counts and host sizes.
//
// Every block is cut into the same number of pieces, so that a host can pass a piece on (or sum it)
// while the next ones are in flight.
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
  // `pieces` per block: at least 1.
  Blocks(const Placement& where, std::vector<std::int64_t> counts, int pieces);

  int pieces() const { return pieces_; }
  // The order in which all ranks process a block's pieces. Consecutive pieces belong to different
  // ranks of the block's host, so that all of them send, each on its own rail.
  int piece_in_turn(int turn) const;

  algorithm::Range part(int rank) const;   // a rank's own elements
  algorithm::Range block(int node) const;  // the elements of a host's ranks
  algorithm::Range piece(int node, int index) const;
  // The part of a piece of `block(of)` that local rank `local` of host `at` holds.
  algorithm::Range shard_at(int of, int at, int local, int index) const;

  // One exchange of `rank` in an all_gather, at distance d (1 to nodes - 1). Sends its elements of
  // the piece to the host d ahead. Receives its shard of that piece from the host d behind. Input:
  // its part; output: the whole buffer. Ordinals are 0, because each pair exchanges at most one
  // message in each direction.
  algorithm::Program gather_step(int rank, int distance, int index) const;
  // The reverse, for a reduce_scatter. Sends its shard of the piece of the host d ahead to the
  // ranks whose parts it overlaps; the input is the caller's scratch with that shard. Receives the
  // shards that the host d behind holds of this rank's part in that piece. Output: its part.
  algorithm::Program scatter_step(int rank, int distance, int index) const;

 private:
  const Placement& where_;
  std::vector<std::int64_t> starts_;  // by rank, then the end
  int pieces_;
};

}  // namespace shoal::collectives::hierarchical
