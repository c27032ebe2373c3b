// The programs of each operation: what `algorithm` makes rank `member.rank` do. Pure functions;
// counts and in-place rules as in communicator.h. docs/algorithms.md has steps, bytes and bounds.
//
// No two ranks start with the same peer. Every element is reduced once, or by every rank with the
// same expression, so that results are the same to the bit on all ranks. Sums on their way travel
// as Space::partial and are rounded once. sums_canonically() says which sum by the canonical tree
// (canonical_tree.h) and so give the bits of fixed order. A pair that an operation does not offer
// throws invalid_argument, naming those it does.
#pragma once

#include <cstdint>
#include <span>

#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/algorithm/program.h"

namespace shoal::collectives::algorithm {

struct Member {
  int rank = 0, size = 1;
};

// How a buffer is cut. Every rank passes the same.
struct Slicing {
  std::int64_t slice = 0;    // elements of one message at most; 0: messages are not cut
  std::int64_t granule = 1;  // borders of shards are multiples of it
};

// Elements of each rank, in rank order.
using PartCounts = std::span<const std::int64_t>;

namespace programs {

// Whether that algorithm of a reduction sums by the canonical tree. `root`: of a reduce, else 0.
bool sums_canonically(Algorithm algorithm, int size, int root);

// ring, halving_doubling, recursive_doubling, tree, direct
Program all_reduce(Algorithm algorithm, Member member, std::int64_t count, Slicing slicing);
// ring, halving_doubling, direct. input: all parts, packed; output: part `rank`.
Program reduce_scatter(Algorithm algorithm, Member member, PartCounts counts, Slicing slicing);
// ring, halving_doubling, bruck, direct. input: part `rank`; output: all parts, packed.
Program all_gather(Algorithm algorithm, Member member, PartCounts counts, Slicing slicing);
// tree, chain, sharded (scatter, then all_gather). Only output is used.
Program broadcast(Algorithm algorithm, Member member, std::int64_t count, int root,
                  Slicing slicing);
// tree, chain, sharded (shards of all but the root, who adds its own), direct (the root takes all
// and sums). output is touched at the root only.
Program reduce(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing);
// tree, direct. `count` elements of each rank.
Program gather(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing);
Program scatter(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing);
// pairwise (one peer after the other), direct (all at once). This rank's counts, by peer.
Program all_to_all(Algorithm algorithm, Member member, PartCounts send_counts,
                   PartCounts recv_counts, Slicing slicing);
// dissemination
Program barrier(Member member);

}  // namespace programs
}  // namespace shoal::collectives::algorithm
