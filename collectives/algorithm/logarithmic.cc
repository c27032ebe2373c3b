// Algorithms for small messages: the minimal number of steps.
#include <algorithm>

#include "shoal/collectives/algorithm/folding.h"
#include "shoal/collectives/algorithm/generators.h"

namespace shoal::collectives::algorithm::generators {

Program recursive_doubling_all_reduce(Member member, std::int64_t count, Slicing slicing) {
  ProgramBuilder b(member, 0);
  const Folding f(member);
  const Piece whole{Space::output, 0, count};
  if (f.core == 1) {
    b.copy({Space::input, 0, count}, whole);
    return b.take();
  }
  Piece current = fold_inputs(b, f, count, slicing);
  if (f.lends) {
    receive_sliced(b, f.partner, whole, slicing);
    return b.take();
  }
  for (int mask = 1; mask < f.core; mask *= 2) {
    const int other = f.place ^ mask, peer = f.holder(other);
    const bool plain = mask == 1 && !f.speaks_for_two(other);
    const Piece arrivals = plain ? b.new_scratch(count) : b.new_partial(count);
    const bool last = 2 * mask == f.core;
    const Piece sums = last ? whole : plain ? b.new_partial(count) : arrivals;
    const Slices slices = slices_of(count, slicing);
    for (std::int64_t k = 0; k < slices.number(); ++k) {
      const Range s = slices.at(k);
      b.send(peer, part(current, s));
      b.receive(peer, part(arrivals, s));
      // Both partners compute the same expression: the lower half is the first operand.
      const bool lower = (f.place & mask) == 0;
      const Piece mine = part(current, s), theirs = part(arrivals, s);
      b.reduce(lower ? std::vector{mine, theirs} : std::vector{theirs, mine}, part(sums, s), last);
    }
    current = sums;
  }
  if (f.paired) send_sliced(b, f.partner, whole, slicing);
  return b.take();
}

// Bruck et al., 1997. Rank r collects the parts of r, r + 1, … in scratch. The last step transfers
// only the parts still missing.
Program bruck_all_gather(Member member, PartCounts counts, Slicing slicing) {
  const auto parts = packed(counts);
  const int n = member.size, rank = member.rank;
  const Range own = parts[static_cast<std::size_t>(rank)];
  ProgramBuilder b(member, own.begin);
  // Total elements of `blocks` parts from rank `first` on.
  const auto length = [&](int first, int blocks) {
    std::int64_t sum = 0;
    for (int i = 0; i < blocks; ++i) sum += parts[static_cast<std::size_t>((first + i) % n)].size();
    return sum;
  };
  const Piece input{Space::input, 0, own.size()};
  const Piece collected = n > 1 ? b.new_scratch(length(rank, n)) : Piece{};
  // The first message is sent from input, so that it need not wait for the copy.
  if (n > 2) b.copy(input, part(collected, {0, own.size()}));
  for (int have = 1; have < n; have *= 2) {
    const int blocks = std::min(have, n - have);
    const Piece out = have == 1 ? input : part(collected, {0, length(rank, blocks)});
    const std::int64_t begin = length(rank, have);
    const Piece in = part(collected, {begin, begin + length((rank + have) % n, blocks)});
    const Slices sends = slices_of(out.count, slicing), gets = slices_of(in.count, slicing);
    for (std::int64_t k = 0; k < std::max(sends.number(), gets.number()); ++k) {
      b.send(b.neighbour(-have), part(out, sends.at(k)));
      b.receive(b.neighbour(have), part(in, gets.at(k)));
    }
  }
  for (int i = 1; i < n; ++i) {
    const Range& theirs = parts[static_cast<std::size_t>((rank + i) % n)];
    const std::int64_t begin = length(rank, i);
    b.copy(part(collected, {begin, begin + theirs.size()}),
           {Space::output, theirs.begin, theirs.size()});
  }
  b.copy(input, {Space::output, own.begin, own.size()});
  return b.take();
}

}  // namespace shoal::collectives::algorithm::generators
