// Rings (Patarasuk and Yuan, 2009). Each rank sends only to its right neighbour; reduce_scatter and
// all_gather take n - 1 hops each.
#include <algorithm>

#include "shoal/collectives/algorithm/generators.h"

namespace shoal::collectives::algorithm::generators {
namespace {

// Number of hops whose sums have a buffer: one sum arrives, the previous one leaves, and the next
// receive may be posted. With one buffer, all ranks would wait for their right neighbour.
constexpr int kHopsInFlight = 3;

const Range& part_of(std::span<const Range> parts, int index) {
  const int size = static_cast<int>(parts.size());
  return parts[static_cast<std::size_t>(((index % size) + size) % size)];
}

Piece at(Space space, const Range& whole, const Range& slice) {
  return {space, whole.begin + slice.begin, slice.size()};
}

}  // namespace

// Part p starts at rank p + 1 and adds one rank's input per hop until it is complete at rank p.
void ring_reduce_scatter(ProgramBuilder& b, std::span<const Range> parts, Piece mine,
                         Slicing slicing) {
  const int n = b.size(), rank = b.rank();
  if (n == 1) {
    b.copy({Space::input, parts[0].begin, parts[0].size()}, mine);
    return;
  }
  const std::int64_t room = largest(parts);
  const Piece first = b.new_scratch(room);  // the left neighbour's plain input
  std::vector<Piece> sums;
  for (int i = 0; n > 2 && i < std::min(n - 1, kHopsInFlight); ++i)
    sums.push_back(b.new_partial(room));
  const auto sum = [&](int hop, const Range& slice) {  // the partial sum of hop `hop`
    return part(sums[static_cast<std::size_t>(hop) % sums.size()], slice);
  };
  for (int hop = 0; hop < n - 1; ++hop) {
    const Range& out = part_of(parts, rank - 1 - hop);
    const Range& in = part_of(parts, rank - 2 - hop);
    const Slices outgoing = slices_of(out.size(), slicing),
                 incoming = slices_of(in.size(), slicing);
    for (std::int64_t k = 0; k < std::max(outgoing.number(), incoming.number()); ++k) {
      const Range s = outgoing.at(k), r = incoming.at(k);
      b.send(b.neighbour(1), hop == 0 ? at(Space::input, out, s) : sum(hop - 1, s));
      if (r.empty()) continue;
      // A sum arrives in the buffer in which this rank adds its own input.
      const bool last = hop == n - 2;
      const Piece arrived = hop == 0 ? part(first, r) : sum(hop, r);
      b.receive(b.neighbour(-1), arrived);
      b.reduce({arrived, at(Space::input, in, r)}, last ? part(mine, r) : sum(hop, r), last);
    }
  }
}

void ring_all_gather(ProgramBuilder& b, std::span<const Range> parts, Piece mine, Slicing slicing) {
  const int n = b.size(), rank = b.rank();
  for (int hop = 0; hop < n - 1; ++hop) {
    const Range& out = part_of(parts, rank - hop);
    const Range& in = part_of(parts, rank - hop - 1);
    const Slices outgoing = slices_of(out.size(), slicing),
                 incoming = slices_of(in.size(), slicing);
    for (std::int64_t k = 0; k < std::max(outgoing.number(), incoming.number()); ++k) {
      const Range s = outgoing.at(k), r = incoming.at(k);
      b.send(b.neighbour(1), hop == 0 ? part(mine, s) : at(Space::output, out, s));
      b.receive(b.neighbour(-1), at(Space::output, in, r));
    }
  }
  const Range& own = parts[static_cast<std::size_t>(rank)];
  if (mine.space != Space::output) b.copy(mine, {Space::output, own.begin, own.size()});
}

Program ring_all_reduce(Member member, std::int64_t count, Slicing slicing) {
  ProgramBuilder b(member, 0);
  const auto parts = shards(count, member.size, slicing.granule);
  const Range& own = parts[static_cast<std::size_t>(member.rank)];
  const Piece mine{Space::output, own.begin, own.size()};
  ring_reduce_scatter(b, parts, mine, slicing);
  ring_all_gather(b, parts, mine, slicing);
  return b.take();
}

Program ring_reduce_scatter(Member member, PartCounts counts, Slicing slicing) {
  const auto parts = packed(counts);
  const Range& own = parts[static_cast<std::size_t>(member.rank)];
  ProgramBuilder b(member, -own.begin);
  ring_reduce_scatter(b, parts, {Space::output, 0, own.size()}, slicing);
  return b.take();
}

Program ring_all_gather(Member member, PartCounts counts, Slicing slicing) {
  const auto parts = packed(counts);
  const Range& own = parts[static_cast<std::size_t>(member.rank)];
  ProgramBuilder b(member, own.begin);
  ring_all_gather(b, parts, {Space::input, 0, own.size()}, slicing);
  return b.take();
}

}  // namespace shoal::collectives::algorithm::generators
