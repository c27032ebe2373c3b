// The programs of each operation: the instructions of rank `member.rank` under `algorithm`. Pure
// functions; counts and in-place rules as in communicator.h. docs/internals/algorithms.md has
// steps, bytes and bounds.
//
// No two ranks start with the same peer. Every element is reduced once, or by every rank with the
// same expression, so results are bit-identical on all ranks. Partial sums travel as Space::partial
// and are rounded once.
//
// sums_canonically() tells which algorithms sum by the canonical tree (canonical_tree.h), as fixed
// order requires. An algorithm that an operation does not offer throws invalid_argument, naming
// those it offers.
#pragma once

#include <cstdint>
#include <span>

#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/algorithm/program.h"

namespace shoal::collectives::algorithm {

struct Member {
  int rank = 0, size = 1;
};

// How a buffer is cut. Every rank passes the same values.
struct Slicing {
  std::int64_t slice = 0;    // maximum elements of one message; 0: messages are not cut
  std::int64_t granule = 1;  // shard bounds are multiples of it
};

// Element counts by rank.
using PartCounts = std::span<const std::int64_t>;

namespace programs {

// Whether a reduction algorithm sums by the canonical tree. `root`: of a reduce, else 0.
bool sums_canonically(Algorithm algorithm, int size, int root);

// ring, halving_doubling, recursive_doubling, tree, direct
Program all_reduce(Algorithm algorithm, Member member, std::int64_t count, Slicing slicing);
// ring, halving_doubling, direct. input: all parts, packed; output: part `rank`
Program reduce_scatter(Algorithm algorithm, Member member, PartCounts counts, Slicing slicing);
// ring, halving_doubling, bruck, direct. input: part `rank`; output: all parts, packed
Program all_gather(Algorithm algorithm, Member member, PartCounts counts, Slicing slicing);
// tree, chain, sharded (scatter, then all_gather). Only output is used.
Program broadcast(Algorithm algorithm, Member member, std::int64_t count, int root,
                  Slicing slicing);
// tree, chain, sharded (every rank but the root reduces a shard; the root adds its own input),
// direct (the root collects all inputs and sums). output is touched at the root only.
Program reduce(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing);
// tree, direct. `count` elements per rank.
Program gather(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing);
Program scatter(Algorithm algorithm, Member member, std::int64_t count, int root, Slicing slicing);
// pairwise (one peer at a time), direct (all at once). This rank's counts, by peer.
Program all_to_all(Algorithm algorithm, Member member, PartCounts send_counts,
                   PartCounts recv_counts, Slicing slicing);
// dissemination
Program barrier(Member member);

}  // namespace programs
}  // namespace shoal::collectives::algorithm
