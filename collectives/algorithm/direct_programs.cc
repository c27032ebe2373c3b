// The balanced fusion buffers of Herring, with the workers as servers: rank p collects part p from
// all ranks, sums it once by the canonical tree and returns it to all. No partial sum travels.
#include <algorithm>

#include "shoal/collectives/algorithm/generators.h"

namespace shoal::collectives::algorithm::generators {

void direct_reduce_scatter(ProgramBuilder& b, std::span<const Range> parts, Piece mine,
                           Slicing slicing) {
  const int n = b.size(), rank = b.rank();
  const Range& own = parts[static_cast<std::size_t>(rank)];
  const Slices received = slices_of(own.size(), slicing);
  const std::int64_t turns = std::min(kSlicesInFlight, received.number());
  std::vector<Piece> arrivals;  // [turn][peer], without this rank
  for (std::int64_t i = 0; i < turns * (n - 1); ++i)
    arrivals.push_back(b.new_scratch(received.at(0).size()));
  const std::int64_t most = slices_of(largest(parts), slicing).number();
  for (std::int64_t k = 0; k < most; ++k) {
    const Range r = received.at(k);
    const auto arrival = [&](int distance) {  // from the peer `distance` ranks to the left
      const std::int64_t place = (k % turns) * (n - 1) + distance - 1;
      return part(arrivals[static_cast<std::size_t>(place)], {0, r.size()});
    };
    for (int distance = 1; distance < n; ++distance) {
      const int to = b.neighbour(distance);
      const Range& theirs = parts[static_cast<std::size_t>(to)];
      const Range s = slices_of(theirs.size(), slicing).at(k);
      b.send(to, {Space::input, theirs.begin + s.begin, s.size()});
      if (!r.empty()) b.receive(b.neighbour(-distance), arrival(distance));
    }
    if (r.empty()) continue;
    std::vector<Piece> sources;
    for (int from = 0; from < n; ++from)
      sources.push_back(from == rank ? Piece{Space::input, own.begin + r.begin, r.size()}
                                     : arrival((rank - from + n) % n));
    b.reduce(std::move(sources), part(mine, r), true, true);
  }
}

void direct_all_gather(ProgramBuilder& b, std::span<const Range> parts, Piece mine,
                       Slicing slicing) {
  const int n = b.size();
  const Range& own = parts[static_cast<std::size_t>(b.rank())];
  const std::int64_t most = slices_of(largest(parts), slicing).number();
  for (std::int64_t k = 0; k < most; ++k)
    for (int distance = 1; distance < n; ++distance) {
      const int from = b.neighbour(-distance);
      const Range& theirs = parts[static_cast<std::size_t>(from)];
      const Range r = slices_of(theirs.size(), slicing).at(k);
      b.send(b.neighbour(distance), part(mine, slices_of(own.size(), slicing).at(k)));
      b.receive(from, {Space::output, theirs.begin + r.begin, r.size()});
    }
  if (mine.space != Space::output) b.copy(mine, {Space::output, own.begin, own.size()});
}

Program direct_all_reduce(Member member, std::int64_t count, Slicing slicing) {
  ProgramBuilder b(member, 0);
  const auto parts = shards(count, member.size, slicing.granule);
  const Range& own = parts[static_cast<std::size_t>(member.rank)];
  const Piece mine{Space::output, own.begin, own.size()};
  direct_reduce_scatter(b, parts, mine, slicing);
  direct_all_gather(b, parts, mine, slicing);
  return b.take();
}

Program direct_reduce_scatter(Member member, PartCounts counts, Slicing slicing) {
  const auto parts = packed(counts);
  const Range& own = parts[static_cast<std::size_t>(member.rank)];
  ProgramBuilder b(member, -own.begin);
  direct_reduce_scatter(b, parts, {Space::output, 0, own.size()}, slicing);
  return b.take();
}

Program direct_all_gather(Member member, PartCounts counts, Slicing slicing) {
  const auto parts = packed(counts);
  const Range& own = parts[static_cast<std::size_t>(member.rank)];
  ProgramBuilder b(member, own.begin);
  direct_all_gather(b, parts, {Space::input, 0, own.size()}, slicing);
  return b.take();
}

// The root collects and sums the whole buffer.
Program direct_reduce(Member member, std::int64_t count, int root, Slicing slicing) {
  ProgramBuilder b(member, 0);
  std::vector<Range> parts;
  for (int rank = 0; rank < member.size; ++rank)
    parts.push_back({rank > root ? count : 0, rank >= root ? count : 0});
  direct_reduce_scatter(b, parts, {Space::output, 0, member.rank == root ? count : 0}, slicing);
  return b.take();
}

Program direct_gather(Member member, std::int64_t count, int root, Slicing slicing) {
  const bool at_root = member.rank == root;
  ProgramBuilder b(member, at_root ? std::optional(root * count) : std::nullopt);
  const Slices slices = slices_of(count, slicing);
  for (std::int64_t k = 0; k < slices.number(); ++k) {
    const Range s = slices.at(k);
    if (!at_root) {
      b.send(root, {Space::input, s.begin, s.size()});
      continue;
    }
    for (int distance = 1; distance < b.size(); ++distance) {
      const int from = b.neighbour(distance);
      b.receive(from, {Space::output, from * count + s.begin, s.size()});
    }
  }
  if (at_root) b.copy({Space::input, 0, count}, {Space::output, root * count, count});
  return b.take();
}

Program direct_scatter(Member member, std::int64_t count, int root, Slicing slicing) {
  const bool at_root = member.rank == root;
  ProgramBuilder b(member, at_root ? std::optional(-root * count) : std::nullopt);
  const Slices slices = slices_of(count, slicing);
  for (std::int64_t k = 0; k < slices.number(); ++k) {
    const Range s = slices.at(k);
    if (!at_root) {
      b.receive(root, {Space::output, s.begin, s.size()});
      continue;
    }
    for (int distance = 1; distance < b.size(); ++distance) {
      const int to = b.neighbour(distance);
      b.send(to, {Space::input, to * count + s.begin, s.size()});
    }
  }
  if (at_root) b.copy({Space::input, root * count, count}, {Space::output, 0, count});
  return b.take();
}

}  // namespace shoal::collectives::algorithm::generators
