// The generators behind programs.h, by algorithm, and phases shared by several of them.
#pragma once

#include <span>

#include "shoal/collectives/algorithm/builder.h"

namespace shoal::collectives::algorithm::generators {

// Phases append to a builder. `parts`: ranges of all ranks in input or output. After a
// reduce_scatter phase, rank r holds its complete part r in `mine`. An all_gather phase starts from
// `mine` (in output or input) and ends with all parts in output.
void ring_reduce_scatter(ProgramBuilder& b, std::span<const Range> parts, Piece mine,
                         Slicing slicing);
void ring_all_gather(ProgramBuilder& b, std::span<const Range> parts, Piece mine, Slicing slicing);
void direct_reduce_scatter(ProgramBuilder& b, std::span<const Range> parts, Piece mine,
                           Slicing slicing);
void direct_all_gather(ProgramBuilder& b, std::span<const Range> parts, Piece mine,
                       Slicing slicing);

Program ring_all_reduce(Member member, std::int64_t count, Slicing slicing);
Program ring_reduce_scatter(Member member, PartCounts counts, Slicing slicing);
Program ring_all_gather(Member member, PartCounts counts, Slicing slicing);

Program direct_all_reduce(Member member, std::int64_t count, Slicing slicing);
Program direct_reduce_scatter(Member member, PartCounts counts, Slicing slicing);
Program direct_all_gather(Member member, PartCounts counts, Slicing slicing);

Program halving_doubling_all_reduce(Member member, std::int64_t count, Slicing slicing);
Program halving_reduce_scatter(Member member, PartCounts counts, Slicing slicing);
Program doubling_all_gather(Member member, PartCounts counts, Slicing slicing);

Program recursive_doubling_all_reduce(Member member, std::int64_t count, Slicing slicing);
Program bruck_all_gather(Member member, PartCounts counts, Slicing slicing);

Program tree_all_reduce(Member member, std::int64_t count, Slicing slicing);
Program tree_broadcast(Member member, std::int64_t count, int root, Slicing slicing);
Program tree_reduce(Member member, std::int64_t count, int root, Slicing slicing);
Program tree_gather(Member member, std::int64_t count, int root);
Program tree_scatter(Member member, std::int64_t count, int root);
Program direct_gather(Member member, std::int64_t count, int root, Slicing slicing);
Program direct_reduce(Member member, std::int64_t count, int root, Slicing slicing);
Program direct_scatter(Member member, std::int64_t count, int root, Slicing slicing);

Program chain_broadcast(Member member, std::int64_t count, int root, Slicing slicing);
Program chain_reduce(Member member, std::int64_t count, int root, Slicing slicing);
Program sharded_broadcast(Member member, std::int64_t count, int root, Slicing slicing);
Program sharded_reduce(Member member, std::int64_t count, int root, Slicing slicing);

Program pairwise_all_to_all(Member member, PartCounts send_counts, PartCounts recv_counts,
                            Slicing slicing);
Program direct_all_to_all(Member member, PartCounts send_counts, PartCounts recv_counts,
                          Slicing slicing);

}  // namespace shoal::collectives::algorithm::generators
