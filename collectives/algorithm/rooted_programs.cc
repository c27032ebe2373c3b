// broadcast and reduce of large data: no rank sends or receives more than the data once.
#include <algorithm>

#include "shoal/collectives/algorithm/generators.h"

namespace shoal::collectives::algorithm::generators {

// A pipeline: slice k passes rank i while slice k + 1 passes rank i - 1.
Program chain_broadcast(Member member, std::int64_t count, int root, Slicing slicing) {
  ProgramBuilder b(member, std::nullopt);
  const int n = member.size, place = (member.rank - root + n) % n;
  const Slices slices = slices_of(count, slicing);
  for (std::int64_t k = 0; k < slices.number(); ++k) {
    const Piece piece = part({Space::output, 0, count}, slices.at(k));
    if (place > 0) b.receive(b.neighbour(-1), piece);
    if (place + 1 < n) b.send(b.neighbour(1), piece);
  }
  return b.take();
}

Program chain_reduce(Member member, std::int64_t count, int root, Slicing slicing) {
  ProgramBuilder b(member, 0);
  const int n = member.size, place = (member.rank - root + n) % n;
  const Slices slices = slices_of(count, slicing);
  const bool first = place == n - 1, second = place == n - 2, last = place == 0;
  std::vector<Piece> arrivals, sums;
  for (std::int64_t turn = 0; !first && turn < std::min(kSlicesInFlight, slices.number()); ++turn) {
    const std::int64_t room = slices.at(0).size();
    arrivals.push_back(second ? b.new_scratch(room) : b.new_partial(room));
    // A received sum is sent on from the buffer it arrived in.
    sums.push_back(second && !last ? b.new_partial(room) : arrivals.back());
  }
  for (std::int64_t k = 0; k < slices.number(); ++k) {
    const Range s = slices.at(k);
    const Piece input{Space::input, s.begin, s.size()};
    if (first) {
      if (last)
        b.copy(input, {Space::output, s.begin, s.size()});
      else
        b.send(b.neighbour(-1), input);
      continue;
    }
    const auto turn = static_cast<std::size_t>(k) % arrivals.size();
    const Piece arrival = part(arrivals[turn], {0, s.size()});
    const Piece sum =
        last ? Piece{Space::output, s.begin, s.size()} : part(sums[turn], {0, s.size()});
    b.receive(b.neighbour(1), arrival);
    b.reduce({input, arrival}, sum, last);
    if (!last) b.send(b.neighbour(-1), sum);
  }
  return b.take();
}

namespace {

// The root's n - 1 helpers serve one shard each. `place` is the distance from the root.
struct Helpers {
  Helpers(Member member, std::int64_t count, int root_rank, Slicing cut)
      : n(member.size),
        root(root_rank),
        place((member.rank - root_rank + n) % n),
        parts(shards(count, std::max(1, n - 1), cut.granule)),
        slicing(cut),
        turns(slices_of(largest(parts), cut).number()) {}
  int rank(int at) const { return (at + root) % n; }
  // The k-th slice of a helper's shard.
  Range slice(int at, std::int64_t k) const {
    const Range& whole = parts[static_cast<std::size_t>(at) - 1];
    const Range s = slices_of(whole.size(), slicing).at(k);
    return {whole.begin + s.begin, whole.begin + s.end};
  }
  // The d-th helper after this one, and the d-th before it; d from 1 to n - 2.
  int other(int d) const { return (place - 1 + d) % (n - 1) + 1; }
  int before(int d) const { return (place - 1 + (n - 1) - d) % (n - 1) + 1; }

  int n, root, place;
  std::vector<Range> parts;
  Slicing slicing;
  std::int64_t turns;
};

Piece at(Space space, const Range& range) { return {space, range.begin, range.size()}; }

}  // namespace

// The root sends each helper its shard, slice by slice; the helper sends it to the other helpers.
Program sharded_broadcast(Member member, std::int64_t count, int root, Slicing slicing) {
  ProgramBuilder b(member, std::nullopt);
  const Helpers h(member, count, root, slicing);
  for (std::int64_t k = 0; k < h.turns; ++k) {
    if (h.place == 0) {
      for (int helper = 1; helper < h.n; ++helper)
        b.send(h.rank(helper), at(Space::output, h.slice(helper, k)));
      continue;
    }
    const Piece mine = at(Space::output, h.slice(h.place, k));
    b.receive(root, mine);
    for (int d = 1; d < h.n - 1; ++d) {
      b.send(h.rank(h.other(d)), mine);
      b.receive(h.rank(h.before(d)), at(Space::output, h.slice(h.before(d), k)));
    }
  }
  return b.take();
}

// Each helper sums its shard over all helpers; the root adds its own input.
Program sharded_reduce(Member member, std::int64_t count, int root, Slicing slicing) {
  ProgramBuilder b(member, 0);
  const Helpers h(member, count, root, slicing);
  if (h.n == 1) {
    b.copy({Space::input, 0, count}, {Space::output, 0, count});
    return b.take();
  }
  const bool sums = h.n > 2;  // a single helper sends its input unsummed
  const int sources = h.place == 0 ? h.n - 1 : h.n - 2;
  const std::int64_t room = slices_of(largest(h.parts), slicing).at(0).size();
  std::vector<Piece> arrivals, totals;  // [turn][source], [turn]
  for (std::int64_t turn = 0; turn < std::min(kSlicesInFlight, h.turns); ++turn) {
    for (int i = 0; i < sources; ++i)
      arrivals.push_back(h.place == 0 && sums ? b.new_partial(room) : b.new_scratch(room));
    if (h.place > 0 && sums) totals.push_back(b.new_partial(room));
  }
  const auto arrival = [&](std::int64_t k, int source, const Range& slice) {
    const std::int64_t place = (k % kSlicesInFlight) * sources + source;
    return part(arrivals[static_cast<std::size_t>(place)], {0, slice.size()});
  };
  for (std::int64_t k = 0; k < h.turns; ++k) {
    if (h.place == 0) {
      for (int helper = 1; helper < h.n; ++helper) {
        const Range s = h.slice(helper, k);
        if (s.empty()) continue;
        const Piece arrived = arrival(k, helper - 1, s);
        b.receive(h.rank(helper), arrived);
        b.reduce({at(Space::input, s), arrived}, at(Space::output, s), true);
      }
      continue;
    }
    const Range mine = h.slice(h.place, k);
    std::vector<Piece> all{at(Space::input, mine)};
    for (int d = 1; d < h.n - 1; ++d) {
      b.send(h.rank(h.other(d)), at(Space::input, h.slice(h.other(d), k)));
      if (mine.empty()) continue;
      all.push_back(arrival(k, d - 1, mine));
      b.receive(h.rank(h.before(d)), all.back());
    }
    if (mine.empty()) continue;
    if (!sums) {
      b.send(root, all[0]);
      continue;
    }
    const Piece total =
        part(totals[static_cast<std::size_t>(k % kSlicesInFlight)], {0, mine.size()});
    b.reduce(std::move(all), total);
    b.send(root, total);
  }
  return b.take();
}

}  // namespace shoal::collectives::algorithm::generators
