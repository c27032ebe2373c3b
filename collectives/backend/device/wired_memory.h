// Device memory that messages between hosts leave from and arrive in directly, and which messages
// a call is made of.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "shoal/collectives/backend/device/peer_memory.h"
#include "shoal/collectives/backend/hierarchical/placement.h"
#include "shoal/collectives/backend/wires.h"

namespace shoal::collectives::device {

// Segments of the ranks' memory, registered when they are first used and kept so until the end:
// registering takes longer than most messages. Memory from elsewhere is never registered, since
// nobody here would know when it is freed. It owns the registrations, not the memory, whose
// segments live as long as `memory`. For one thread.
class WiredMemory {
 public:
  // All three must outlive it.
  WiredMemory(Wires& wires, ShareableMemory& memory, PeerAccess& access)
      : wires_(wires), memory_(memory), access_(access) {}

  // Registers the segment of a small block, to see that it can be done. Blocks; throws what the
  // memory and the transport say.
  void try_it();
  // Whether messages may lie at [pointer, pointer + bytes) from now on: it is of the memory, which
  // was or could be registered. Blocks while a segment is registered, once; one that is refused is
  // logged, and refused from then on.
  bool reach(const void* pointer, std::int64_t bytes);
  Wires& wires() const { return wires_; }
  // The messages of a call (messages_of), whose buffers are within reach and belong to the Work
  // until it is done. Every rank calls it; nobody blocks. The copies of what a rank has for itself
  // are the caller's, and so is the order with streams (wires.h).
  WorkPtr exchange(Call call, int rank, const hierarchical::Placement& where);

 private:
  void hold(void* segment);

  Wires& wires_;
  ShareableMemory& memory_;
  PeerAccess& access_;
  std::map<void*, std::unique_ptr<Registration>> segments_;  // null: refused
};

// Calls that are messages and copies only. Reductions need the device between their messages.
bool is_of_messages(Operation operation);
// Bytes of the longest message that some rank sends; all ranks answer alike. Negative: not known.
std::int64_t longest_message(const Call& call, int size);

// This rank's messages of a call. What a rank has for itself
// is no message; nor, in an all_gather, what another rank of its host receives for it (carrier_of).
algorithm::Program messages_of(const Call& call, int rank, const hierarchical::Placement& where);

// Of an all_gather: the rank of `rank`'s host that receives the part of `owner`, itself where it is
// of that host. Ranks of one host share the others' parts, so each crosses between two hosts once.
int carrier_of(int owner, int rank, const hierarchical::Placement& where);

// Elements [from, from + count) of `send` that belong at `to` of `recv` on this rank.
struct OwnPart {
  std::int64_t from = 0, to = 0, count = 0;
};
OwnPart own_part(const Call& call, int rank, int size);

}  // namespace shoal::collectives::device
