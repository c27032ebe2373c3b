// The parts of an operation's buffers, and the slices in which they pass through host memory.
#pragma once

#include <numeric>
#include <vector>

#include "shoal/collectives/call.h"

namespace shoal::collectives::device {

inline std::size_t at(int index) { return static_cast<std::size_t>(index); }
// The sum of the counts of the ranks before `rank`.
inline std::int64_t before(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

// Elements of each part of a rank's send and recv buffers, packed in order. No parts: no buffer.
struct Parts {
  std::vector<std::int64_t> send, recv;
};
Parts parts_of(const Call& call, int rank, int size);

// `number` slices, each with `length` elements of every part. All ranks cut an operation alike.
struct Slicing {
  std::int64_t number = 1, length = 0;
};
// Cuts so that a slice's staged parts together take about `bytes` on each rank. all_to_all_v is not
// cut, because a rank knows only its own counts.
Slicing slicing_of(const Call& call, int size, std::int64_t bytes);

// Number of elements of slice s in a part of `count` elements. They start at s * length.
std::int64_t slice_count(std::int64_t count, const Slicing& slicing, std::int64_t s);

// One part of slice s: its position in the packed device buffer and in the staged one, in elements.
struct Piece {
  std::int64_t device, staged, count;
};
std::vector<Piece> pieces_of(const std::vector<std::int64_t>& parts, const Slicing& slicing,
                             std::int64_t s);

// The call for slice s over staged buffers.
Call sliced(const Call& call, const Slicing& slicing, std::int64_t s, const void* send, void* recv);

}  // namespace shoal::collectives::device
