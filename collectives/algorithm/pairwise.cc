// all_to_all: in step s, rank r sends to r + s and receives from r - s, so that no two ranks send
// to the same rank at once.
#include <algorithm>

#include "shoal/collectives/algorithm/generators.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::algorithm::generators {
namespace {

Program exchange(Member member, PartCounts send_counts, PartCounts recv_counts, Slicing slicing,
                 bool one_by_one) {
  ProgramBuilder b(member, std::nullopt);
  const auto sends = packed(send_counts), receives = packed(recv_counts);
  const auto rank = static_cast<std::size_t>(member.rank);
  SHOAL_CHECK(sends[rank].size() == receives[rank].size(),
              "all_to_all: rank {} sends {} elements to itself and receives {}", member.rank,
              sends[rank].size(), receives[rank].size());
  int sent = -1, received = -1;  // last messages of the previous step
  for (int step = 1; step < member.size; ++step) {
    const int to = b.neighbour(step), from = b.neighbour(-step);
    const Range& out = sends[static_cast<std::size_t>(to)];
    const Range& in = receives[static_cast<std::size_t>(from)];
    const Slices outgoing = slices_of(out.size(), slicing),
                 incoming = slices_of(in.size(), slicing);
    const int sent_before = one_by_one ? sent : -1, received_before = one_by_one ? received : -1;
    for (std::int64_t k = 0; k < std::max(outgoing.number(), incoming.number()); ++k) {
      const int s = b.send(to, part({Space::input, out.begin, out.size()}, outgoing.at(k)),
                           {sent_before, received_before});
      const int r = b.receive(from, part({Space::output, in.begin, in.size()}, incoming.at(k)));
      if (s >= 0) sent = s;
      if (r >= 0) received = r;
    }
  }
  b.copy({Space::input, sends[rank].begin, sends[rank].size()},
         {Space::output, receives[rank].begin, receives[rank].size()});
  return b.take();
}

}  // namespace

Program pairwise_all_to_all(Member member, PartCounts send_counts, PartCounts recv_counts,
                            Slicing slicing) {
  return exchange(member, send_counts, recv_counts, slicing, true);
}

Program direct_all_to_all(Member member, PartCounts send_counts, PartCounts recv_counts,
                          Slicing slicing) {
  return exchange(member, send_counts, recv_counts, slicing, false);
}

}  // namespace shoal::collectives::algorithm::generators
