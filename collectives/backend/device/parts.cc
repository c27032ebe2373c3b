#include "shoal/collectives/backend/device/parts.h"

#include <algorithm>

namespace shoal::collectives::device {
namespace {

using Numbers = std::vector<std::int64_t>;

Numbers equal(int parts, std::int64_t count) {
  return Numbers(static_cast<std::size_t>(parts), count);
}

// Whether buffers are not divided into one part for each rank.
bool is_whole(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::broadcast ||
         operation == Operation::reduce || is_message(operation);
}

}  // namespace

Parts parts_of(const Call& call, int rank, int size) {
  const bool root = rank == call.root;
  const std::int64_t count = call.count;
  const auto own = static_cast<std::size_t>(rank);
  switch (call.operation) {
    case Operation::all_reduce:
      return {{count}, {count}};
    case Operation::broadcast:
      return {root ? Numbers{count} : Numbers{}, root ? Numbers{} : Numbers{count}};
    case Operation::reduce:
      return {{count}, root ? Numbers{count} : Numbers{}};
    case Operation::reduce_scatter:
      return {equal(size, count), {count}};
    case Operation::all_gather:
      return {{count}, equal(size, count)};
    case Operation::gather:
      return {{count}, root ? equal(size, count) : Numbers{}};
    case Operation::scatter:
      return {root ? equal(size, count) : Numbers{}, {count}};
    case Operation::all_to_all:
      return {equal(size, count), equal(size, count)};
    case Operation::reduce_scatter_v:
      return {call.counts, {call.counts[own]}};
    case Operation::all_gather_v:
      return {{call.counts[own]}, call.counts};
    case Operation::all_to_all_v:
      return {call.counts, call.recv_counts};
    case Operation::send:
      return {{count}, {}};
    case Operation::recv:
      return {{}, {count}};
    case Operation::barrier:
    case Operation::split:
      break;
  }
  return {};
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
