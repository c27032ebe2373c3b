// Fits any number of ranks to algorithms for powers of two. The first 2·(n − p) ranks form pairs:
// the even rank of a pair lends its input to the odd one and gets the result back.
#pragma once

#include <bit>

#include "shoal/collectives/algorithm/builder.h"

namespace shoal::collectives::algorithm::generators {

struct Folding {
  explicit Folding(Member member)
      : core(static_cast<int>(std::bit_floor(static_cast<unsigned>(member.size)))),
        pairs(member.size - core),
        paired(member.rank < 2 * pairs),
        lends(paired && member.rank % 2 == 0),
        place(paired ? member.rank / 2 : member.rank - pairs),
        partner(paired ? member.rank ^ 1 : -1) {}

  // holder(): the rank at a place among the core ranks. speaks_for_two(): true if that rank
  // represents a pair; the first data that it sends is then already a sum.
  int holder(int at) const { return at < pairs ? 2 * at + 1 : at + pairs; }
  bool speaks_for_two(int at) const { return at < pairs; }

  int core, pairs;
  bool paired, lends;  // lends: not among the core ranks
  int place, partner;
};

// A core rank's start value: its input, or its pair's sum in partial. A lending rank only sends.
inline Piece fold_inputs(ProgramBuilder& b, const Folding& folding, std::int64_t count,
                         Slicing slicing) {
  const Piece input{Space::input, 0, count};
  if (!folding.paired || count == 0) return input;
  const Slices slices = slices_of(count, slicing);
  if (folding.lends) {
    for (std::int64_t k = 0; k < slices.number(); ++k)
      b.send(folding.partner, part(input, slices.at(k)));
    return input;
  }
  const Piece sum = b.new_partial(count);
  std::vector<Piece> arrivals;
  for (std::int64_t k = 0; k < std::min(kSlicesInFlight, slices.number()); ++k)
    arrivals.push_back(b.new_scratch(slices.at(0).size()));
  for (std::int64_t k = 0; k < slices.number(); ++k) {
    const Range s = slices.at(k);
    const Piece arrival =
        part(arrivals[static_cast<std::size_t>(k) % arrivals.size()], {0, s.size()});
    b.receive(folding.partner, arrival);
    b.reduce({arrival, part(input, s)}, part(sum, s));
  }
  return sum;
}

// Send or receive one piece as messages of a slice each.
inline void send_sliced(ProgramBuilder& b, int peer, Piece piece, Slicing slicing) {
  const Slices slices = slices_of(piece.count, slicing);
  for (std::int64_t k = 0; k < slices.number(); ++k) b.send(peer, part(piece, slices.at(k)));
}
inline void receive_sliced(ProgramBuilder& b, int peer, Piece piece, Slicing slicing) {
  const Slices slices = slices_of(piece.count, slicing);
  for (std::int64_t k = 0; k < slices.number(); ++k) b.receive(peer, part(piece, slices.at(k)));
}

}  // namespace shoal::collectives::algorithm::generators
