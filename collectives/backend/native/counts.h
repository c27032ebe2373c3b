// Stores the counts of _v operations in the control slots, where other ranks read and compare them.
#pragma once

#include <optional>
#include <string>

#include "shoal/collectives/backend/native/group.h"
#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator.h"

namespace shoal::collectives::native {

// Bytes that the counts take at the start of a slot's payload, a multiple of 64; 0 without counts.
// Throws invalid_argument if they do not fit: the group has too many ranks.
std::size_t counts_bytes(Operation operation, int size);
// Writes nothing for calls without counts. Check counts_bytes() first.
void write_counts(const Call& call, transport::ControlSlot& slot);
// The counts that a rank passed, and the recv_counts that it passed to all_to_all_v.
Counts counts_in(const transport::ControlSlot& slot, int size);
Counts recv_counts_in(const transport::ControlSlot& slot, int size);

// Bytes of the longest send buffer of any rank. For all_to_all_v, only this rank's is known.
std::int64_t largest_send_bytes(const Call& call, int size);

// The first difference between this rank's counts and the peer's: ": rank 0 says rank 2 has 4, rank
// 1 says 5".
std::string counts_difference(const Group& group, std::uint32_t sequence, int peer);

// The first sender and receiver of an all_to_all_v whose counts differ. Every rank finds the same
// pair. `peer` is the sender, or the receiver if this rank is the sender; `text` names both ranks
// and their counts.
struct UnequalPair {
  int peer = -1;
  std::string text;
};
std::optional<UnequalPair> unequal_pair(const Group& group, std::uint32_t sequence);

}  // namespace shoal::collectives::native
