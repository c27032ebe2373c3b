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
// registering takes longer than most messages. Other memory is never registered, because its
// release would go unnoticed. Owns the registrations but not the memory: segments live as long as
// `memory`. Not thread-safe.
class RdmaMemory {
 public:
  // All arguments must outlive this object.
  RdmaMemory(DeviceRdma& rdma, ShareableMemory& memory, PeerAccess& access)
      : rdma_(rdma), memory_(memory), access_(access) {}

  // Allocates a small block and registers its segment as a test. Blocks. Throws the errors of the
  // memory and the transport.
  void try_it();
  // Whether messages may use [pointer, pointer + bytes): the range is in `memory`, and its segment
  // is or can be registered. Blocks while it registers a segment, once for each. A refused segment
  // is logged and stays refused.
  bool reach(const void* pointer, std::int64_t bytes);
  DeviceRdma& rdma() const { return rdma_; }
  // Runs the messages of a call (messages_of). The call's buffers must be reachable. They belong to
  // the Work until the Work is done. Every rank calls it; does not block. The caller copies its
  // rank's part for itself and orders streams (device_rdma.h).
  WorkPtr exchange(Call call, int rank, const hierarchical::Placement& where);

 private:
  void hold(void* segment);

  DeviceRdma& rdma_;
  ShareableMemory& memory_;
  PeerAccess& access_;
  std::map<void*, std::unique_ptr<Registration>> segments_;  // null: refused
};

// Whether the operation consists of messages and copies only. Reductions need the device between
// messages.
bool is_of_messages(Operation operation);
// Bytes of the longest message that any rank sends; the same on all ranks. Negative: unknown.
std::int64_t longest_message(const Call& call, int size);

// This rank's messages of a call. A rank's part for itself is not a message. In an all_gather,
// parts that another rank of its host receives for it (carrier_of) are no messages either.
algorithm::Program messages_of(const Call& call, int rank, const hierarchical::Placement& where);

// all_gather: the rank of `rank`'s host that receives the part of `owner`; `owner` itself if it is
// on that host. The ranks of a host share received parts, so that each part crosses between two
// hosts once.
int carrier_of(int owner, int rank, const hierarchical::Placement& where);

// This rank copies elements [from, from + count) of its `send` to element `to` of its `recv`.
struct OwnPart {
  std::int64_t from = 0, to = 0, count = 0;
};
OwnPart own_part(const Call& call, int rank, int size);

}  // namespace shoal::collectives::device
