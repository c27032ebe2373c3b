#include "shoal/collectives/backend/native/counts.h"

#include <algorithm>
#include <cstring>

#include "shoal/collectives/call.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::native {
namespace {

const transport::ControlSlot& slot_of(const Group& group, std::uint32_t sequence, int peer) {
  return group.slot(peer, sequence);
}

}  // namespace

std::size_t counts_bytes(Operation operation, int size) {
  if (!has_counts(operation)) return 0;
  const std::size_t numbers = at(size) * (operation == Operation::all_to_all_v ? 2 : 1);
  const std::size_t bytes = (numbers * sizeof(std::int64_t) + 63) / 64 * 64;
  if (bytes > transport::kInlineBytes)
    throw_error(ErrorCode::invalid_argument, "native: {} between {} ranks of one host; at most {}",
                to_string(operation), size,
                transport::kInlineBytes / sizeof(std::int64_t) / (numbers / at(size)));
  return bytes;
}

void write_counts(const Call& call, transport::ControlSlot& slot) {
  if (!has_counts(call.operation)) return;
  std::byte* to = slot.payload;
  for (const auto* counts : {&call.counts, &call.recv_counts}) {
    if (counts->empty()) continue;
    std::memcpy(to, counts->data(), counts->size() * sizeof(std::int64_t));
    to += counts->size() * sizeof(std::int64_t);
  }
}

Counts counts_in(const transport::ControlSlot& slot, int size) {
  return {reinterpret_cast<const std::int64_t*>(slot.payload), at(size)};
}

Counts recv_counts_in(const transport::ControlSlot& slot, int size) {
  return {reinterpret_cast<const std::int64_t*>(slot.payload) + size, at(size)};
}

std::int64_t largest_send_bytes(const Call& call, int size) {
  std::int64_t most = 0;
  switch (call.operation) {
    case Operation::scatter:
      return call.send_bytes(call.root, size);
    case Operation::all_gather_v:
      for (int rank = 0; rank < size; ++rank) most = std::max(most, call.send_bytes(rank, size));
      return most;
    default:
      return call.send_bytes(0, size);
  }
}

std::string counts_difference(const Group& group, std::uint32_t sequence, int peer) {
  const int size = group.size();
  const Counts own = counts_in(slot_of(group, sequence, group.rank()), size);
  const Counts theirs = counts_in(slot_of(group, sequence, peer), size);
  for (int rank = 0; rank < size; ++rank)
    if (own[at(rank)] != theirs[at(rank)])
      return fmt::format(": rank {} gives rank {} a count of {}, rank {} gives it {}",
                         group.member(group.rank()), group.member(rank), own[at(rank)],
                         group.member(peer), theirs[at(rank)]);
  return {};
}

std::optional<UnequalPair> unequal_pair(const Group& group, std::uint32_t sequence) {
  const int size = group.size();
  for (int sender = 0; sender < size; ++sender)
    for (int receiver = 0; receiver < size; ++receiver) {
      const std::int64_t sent = counts_in(slot_of(group, sequence, sender), size)[at(receiver)];
      const std::int64_t expected =
          recv_counts_in(slot_of(group, sequence, receiver), size)[at(sender)];
      if (sent == expected) continue;
      return UnequalPair{sender == group.rank() ? receiver : sender,
                         fmt::format("rank {} sends {} elements to rank {}, which expects {}",
                                     group.member(sender), sent, group.member(receiver), expected)};
    }
  return std::nullopt;
}

}  // namespace shoal::collectives::native
