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

  // The messages of `rank` for piece `index` of an all_gather, at distance d (1 to nodes - 1). The
  // rank sends its own elements in its host's piece to the ranks of the host d ahead. It receives
  // its shard of the piece of the host d behind. Input: its part; output: the whole buffer.
  // Ordinals are 0, because each pair exchanges at most one message in each direction.
  algorithm::Program gather_step(int rank, int distance, int index) const;
  // The reverse for a reduce_scatter. The rank holds a shard of the piece of the host d ahead
  // (input: that shard). It sends each of that host's ranks the elements of the shard that lie in
  // that rank's part. It receives the elements of its own part from the shards that the ranks of
  // the host d behind hold. Output: its part.
  algorithm::Program scatter_step(int rank, int distance, int index) const;

 private:
  const Placement& where_;
  std::vector<std::int64_t> starts_;  // by rank, then the end
  int pieces_;
};

}  // namespace shoal::collectives::hierarchical
