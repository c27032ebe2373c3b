// Recursive halving (reduce_scatter) and doubling (all_gather) after Rabenseifner, 2004. Each takes
// log2 n exchanges, of a half, a quarter, … of the buffer.
#include <algorithm>

#include "shoal/collectives/algorithm/folding.h"
#include "shoal/collectives/algorithm/generators.h"

namespace shoal::collectives::algorithm::generators {
namespace {

// The target of a range of complete sums.
struct Destination {
  Range range;   // in the whole buffer
  Piece target;  // same length as range
};

Range elements(std::span<const Range> parts, int from, int to) {
  return {parts[static_cast<std::size_t>(from)].begin, parts[static_cast<std::size_t>(to) - 1].end};
}

// `parts`: by place among the core ranks. `current` holds the whole buffer.
void halve(ProgramBuilder& b, const Folding& f, std::span<const Range> parts, Piece current,
           std::span<const Destination> destinations, Slicing slicing) {
  std::int64_t base = 0;  // offset of `current` in the whole buffer
  int low = 0;
  for (int mask = f.core / 2; mask > 0; mask /= 2) {
    const int other = f.place ^ mask;
    const bool upper = (f.place & mask) != 0;
    const Range first = elements(parts, low, low + mask);
    const Range second = elements(parts, low + mask, low + 2 * mask);
    const Range keep = upper ? second : first, give = upper ? first : second;
    if (upper) low += mask;
    const bool starts = mask == f.core / 2;
    const Piece arrivals = starts && !f.speaks_for_two(other) ? b.new_scratch(keep.size())
                                                              : b.new_partial(keep.size());
    const auto of_current = [&](const Range& range) {
      return part(current, {range.begin - base, range.end - base});
    };
    // Sums accumulate in partial; input is never overwritten.
    const bool accumulates = current.space == Space::partial;
    const Piece sums = mask == 1     ? Piece{}
                       : accumulates ? of_current(keep)
                                     : b.new_partial(keep.size());
    const Slices gives = slices_of(give.size(), slicing), keeps = slices_of(keep.size(), slicing);
    for (std::int64_t k = 0; k < std::max(gives.number(), keeps.number()); ++k) {
      const Range g = gives.at(k), r = keeps.at(k);
      b.send(f.holder(other), of_current({give.begin + g.begin, give.begin + g.end}));
      if (r.empty()) continue;
      b.receive(f.holder(other), part(arrivals, r));
      const auto add = [&](Range mine, Piece target, bool finish) {
        b.reduce(
            {of_current(mine), part(arrivals, {mine.begin - keep.begin, mine.end - keep.begin})},
            target, finish);
      };
      const Range mine{keep.begin + r.begin, keep.begin + r.end};
      if (mask > 1) {
        add(mine, part(sums, r), false);
        continue;
      }
      for (const Destination& d : destinations) {
        const Range both{std::max(mine.begin, d.range.begin), std::min(mine.end, d.range.end)};
        if (!both.empty())
          add(both, part(d.target, {both.begin - d.range.begin, both.end - d.range.begin}), true);
      }
    }
    current = sums;
    base = keep.begin;
  }
}

// Gathers all parts in output, which already holds this rank's part.
void make_whole(ProgramBuilder& b, const Folding& f, std::span<const Range> parts,
                Slicing slicing) {
  for (int mask = 1; mask < f.core; mask *= 2) {
    const int low = f.place & ~(mask - 1), other = low ^ mask;
    const Range mine = elements(parts, low, low + mask);
    const Range theirs = elements(parts, other, other + mask);
    const int peer = f.holder(f.place ^ mask);
    const Slices sends = slices_of(mine.size(), slicing), gets = slices_of(theirs.size(), slicing);
    for (std::int64_t k = 0; k < std::max(sends.number(), gets.number()); ++k) {
      b.send(peer, part({Space::output, mine.begin, mine.size()}, sends.at(k)));
      b.receive(peer, part({Space::output, theirs.begin, theirs.size()}, gets.at(k)));
    }
  }
}

// The parts of the core ranks: the two parts of a pair are merged into one.
std::vector<Range> core_parts(const Folding& f, std::span<const Range> parts) {
  std::vector<Range> merged;
  for (int place = 0; place < f.core; ++place) {
    const auto holder = static_cast<std::size_t>(f.holder(place));
    const std::size_t first = f.speaks_for_two(place) ? holder - 1 : holder;
    merged.push_back({parts[first].begin, parts[holder].end});
  }
  return merged;
}

}  // namespace

Program halving_doubling_all_reduce(Member member, std::int64_t count, Slicing slicing) {
  ProgramBuilder b(member, 0);
  const Folding f(member);
  const Piece whole{Space::output, 0, count};
  if (f.core == 1) {
    b.copy({Space::input, 0, count}, whole);
    return b.take();
  }
  const Piece current = fold_inputs(b, f, count, slicing);
  if (f.lends) {
    receive_sliced(b, f.partner, whole, slicing);
    return b.take();
  }
  const auto parts = shards(count, f.core, slicing.granule);
  const Range own = parts[static_cast<std::size_t>(f.place)];
  const Destination destination{own, {Space::output, own.begin, own.size()}};
  halve(b, f, parts, current, {&destination, 1}, slicing);
  make_whole(b, f, parts, slicing);
  if (f.paired) send_sliced(b, f.partner, whole, slicing);
  return b.take();
}

Program halving_reduce_scatter(Member member, PartCounts counts, Slicing slicing) {
  const auto parts = packed(counts);
  const auto rank = static_cast<std::size_t>(member.rank);
  const Range own = parts[rank];
  const std::int64_t count = parts.back().end;
  ProgramBuilder b(member, -own.begin);
  const Folding f(member);
  const Piece mine{Space::output, 0, own.size()};
  if (f.core == 1) {
    b.copy({Space::input, 0, count}, mine);
    return b.take();
  }
  const Piece current = fold_inputs(b, f, count, slicing);
  if (f.lends) {
    receive_sliced(b, f.partner, mine, slicing);
    return b.take();
  }
  std::vector<Destination> destinations{{own, mine}};
  if (f.paired) destinations.push_back({parts[rank - 1], b.new_scratch(parts[rank - 1].size())});
  halve(b, f, core_parts(f, parts), current, destinations, slicing);
  if (f.paired) send_sliced(b, f.partner, destinations[1].target, slicing);
  return b.take();
}

Program doubling_all_gather(Member member, PartCounts counts, Slicing slicing) {
  const auto parts = packed(counts);
  const auto rank = static_cast<std::size_t>(member.rank);
  const Range own = parts[rank];
  const std::int64_t count = parts.back().end;
  ProgramBuilder b(member, own.begin);
  const Folding f(member);
  const Piece input{Space::input, 0, own.size()};
  b.copy(input, {Space::output, own.begin, own.size()});
  // A lending rank has its own part and receives all elements before and after it.
  const auto around = [&](const Range& range, const auto& move) {
    move(Piece{Space::output, 0, range.begin});
    move(Piece{Space::output, range.end, count - range.end});
  };
  if (f.lends) {
    send_sliced(b, f.partner, input, slicing);
    around(own, [&](Piece piece) { receive_sliced(b, f.partner, piece, slicing); });
    return b.take();
  }
  if (f.paired) {
    const Range theirs = parts[rank - 1];
    receive_sliced(b, f.partner, {Space::output, theirs.begin, theirs.size()}, slicing);
  }
  make_whole(b, f, core_parts(f, parts), slicing);
  if (f.paired)
    around(parts[rank - 1], [&](Piece piece) { send_sliced(b, f.partner, piece, slicing); });
  return b.take();
}

}  // namespace shoal::collectives::algorithm::generators
