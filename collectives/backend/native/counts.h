// The counts of _v operations in the control slots, where other ranks read and compare them.
#pragma once

#include <optional>
#include <string>

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/backend/native/group.h"

namespace shoal::collectives::native {

// Bytes that the counts take at the start of a slot's payload, a multiple of 64.
std::size_t counts_bytes(Operation operation, int size);
// Nothing for calls without counts. Throws invalid_argument where the group is too large for them.
void write_counts(const Call& call, transport::ControlSlot& slot);
// What a rank passed as counts, and as recv_counts of all_to_all_v.
Counts counts_in(const transport::ControlSlot& slot, int size);
Counts recv_counts_in(const transport::ControlSlot& slot, int size);

// Bytes of the longest send buffer of any rank; of all_to_all_v: of this rank's.
std::int64_t largest_send_bytes(const Call& call, int size);

// Where this rank's counts and the peer's first differ: ": rank 0 says rank 2 has 4, rank 1 says
// 5".
std::string counts_difference(const Group& group, std::uint32_t sequence, int peer);

// The first pair of ranks of an all_to_all_v that do not agree; the same on every rank.
struct UnequalPair {
  int peer = -1;
  std::string text;
};
std::optional<UnequalPair> unequal_pair(const Group& group, std::uint32_t sequence);

}  // namespace shoal::collectives::native
