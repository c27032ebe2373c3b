// Device memory that messages between hosts are sent from and received into directly, and the
// messages of a call.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "shoal/collectives/backend/device/peer_memory.h"
#include "shoal/collectives/backend/device_rdma.h"
#include "shoal/collectives/backend/hierarchical/placement.h"
#include "shoal/collectives/call.h"

namespace shoal::collectives::device {

// Segments of the ranks' memory, registered on first use and kept so until the end, because
// registering takes longer than most messages. Other memory is never registered, since its release
// would go unnoticed. Owns the registrations but not the memory, whose segments live as long as
// `memory`. For one thread.
class WiredMemory {
 public:
  // All arguments must outlive this object.
  WiredMemory(DeviceRdma& rdma, ShareableMemory& memory, PeerAccess& access)
      : rdma_(rdma), memory_(memory), access_(access) {}

  // Registers the segment of a small block as a test. Blocks; throws the errors of the memory and
  // the transport.
  void try_it();
  // Whether messages may use [pointer, pointer + bytes): the range is in `memory`, and its segment
  // is or can be registered. Blocks while a segment is registered, once. A refused segment is
  // logged and stays refused.
  bool reach(const void* pointer, std::int64_t bytes);
  DeviceRdma& rdma() const { return rdma_; }
  // Runs the messages of a call (messages_of). Its buffers must be reachable and belong to the Work
  // until it is done. Every rank calls it; does not block. The caller copies a rank's part for
  // itself and orders streams (device_rdma.h).
  WorkPtr exchange(Call call, int rank, const hierarchical::Placement& where);

 private:
  void hold(void* segment);

  DeviceRdma& rdma_;
  ShareableMemory& memory_;
  PeerAccess& access_;
  std::map<void*, std::unique_ptr<Registration>> segments_;  // null: refused
};

// Calls that consist of messages and copies. Reductions need the device between their messages.
bool is_of_messages(Operation operation);
// Bytes of the longest message that any rank sends, the same on all ranks; negative: unknown.
std::int64_t longest_message(const Call& call, int size);

// This rank's messages of a call. A rank's part for itself is not a message. Neither are, in an
// all_gather, parts that another rank of its host receives for it (carrier_of).
algorithm::Program messages_of(const Call& call, int rank, const hierarchical::Placement& where);

// all_gather: the rank of `rank`'s host that receives the part of `owner`; `owner` itself if it is
// on that host. Ranks of one host share the others' parts, so each part crosses between two hosts
// once.
int carrier_of(int owner, int rank, const hierarchical::Placement& where);

// Elements [from, from + count) of `send` that this rank copies to `to` of its own `recv`.
struct OwnPart {
  std::int64_t from = 0, to = 0, count = 0;
};
OwnPart own_part(const Call& call, int rank, int size);

}  // namespace shoal::collectives::device
