#include "shoal/collectives/backend/device/parts.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::device {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers parts(const Call& call, Extent extent, int rank, int size) {
  switch (extent) {
    case Extent::none:
      return {};
    case Extent::count:
      return {call.count};
    case Extent::ranks:
      return Numbers(static_cast<std::size_t>(size), call.count);
    case Extent::own:
      return {call.counts[static_cast<std::size_t>(rank)]};
    case Extent::counts:
      return call.counts;
    case Extent::recv_counts:
      return call.recv_counts;
  }
  SHOAL_ASSERT(false);
}

// Whether buffers are not divided into one part for each rank.
bool is_whole(Operation operation) {
  const auto one = [](Extent extent) { return extent == Extent::count || extent == Extent::none; };
  return one(traits(operation).send) && one(traits(operation).recv);
}

}  // namespace

Parts parts_of(const Call& call, int rank, int size) {
  const OperationTraits& is = traits(call.operation);
  const bool root = rank == call.root, broadcasts = call.operation == Operation::broadcast;
  const bool sends = root || !(is.only_root_sends || broadcasts);
  const bool receives = broadcasts ? !root : root || !is.only_root_receives;
  return {sends ? parts(call, is.send, rank, size) : Numbers{},
          receives ? parts(call, is.recv, rank, size) : Numbers{}};
}

Slicing slicing_of(const Call& call, int size, std::int64_t bytes) {
  std::int64_t longest = call.count;
  if (!call.counts.empty()) longest = *std::ranges::max_element(call.counts);
  if (!call.recv_counts.empty())
    longest = std::max(longest, *std::ranges::max_element(call.recv_counts));
  const int parts = is_whole(call.operation) ? 1 : size;
  const std::int64_t fit = bytes / static_cast<std::int64_t>(size_of(call.dtype)) / parts;
  Slicing slicing;
  slicing.length = call.operation == Operation::all_to_all_v ? longest : std::min(longest, fit);
  slicing.length = std::max<std::int64_t>(slicing.length, 1);
  slicing.number = std::max<std::int64_t>((longest + slicing.length - 1) / slicing.length, 1);
  return slicing;
}

std::int64_t slice_count(std::int64_t count, const Slicing& slicing, std::int64_t s) {
  return std::clamp<std::int64_t>(count - s * slicing.length, 0, slicing.length);
}

std::vector<Piece> pieces_of(const Numbers& parts, const Slicing& slicing, std::int64_t s) {
  std::vector<Piece> pieces;
  std::int64_t begin = 0, staged = 0;
  for (const std::int64_t part : parts) {
    const std::int64_t count = slice_count(part, slicing, s);
    if (count > 0) pieces.push_back({begin + s * slicing.length, staged, count});
    begin += part;
    staged += count;
  }
  return pieces;
}

Call sliced(const Call& call, const Slicing& slicing, std::int64_t s, const void* send,
            void* recv) {
  Call slice = call;
  slice.send = send;
  slice.recv = recv;
  slice.stream = {};
  slice.count = slice_count(call.count, slicing, s);
  for (std::int64_t& count : slice.counts) count = slice_count(count, slicing, s);
  for (std::int64_t& count : slice.recv_counts) count = slice_count(count, slicing, s);
  return slice;
}

}  // namespace shoal::collectives::device
