// What a Communicator between hosts offers to ranks whose buffers are in device memory: messages
// straight from there and into there (FI_HMEM, GPUDirect RDMA). Used by the thread of its calls.
//
// Nobody here knows streams: what a message carries has been written, and what it overwrites is not
// read any more, before exchange() is called. What a card has written is seen by the device once
// PeerAccess::flush_cards_writes() has returned after the Work.
#pragma once

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives::algorithm {
struct Program;
}

namespace shoal::collectives {

class Wires {
 public:
  virtual ~Wires() = default;
  // Why messages cannot lie in that device's memory; empty: they can, while it is registered. Does
  // not block.
  virtual std::string wires_problem(Device device) const = 0;
  // On a thread on which the device is current. [data, data + bytes) stays the caller's, who keeps
  // it for longer than the Registration, which holds until it is destroyed: after the Works that
  // use it. Blocks while the card maps the memory. Throws what the transport says (unavailable
  // where the card or the driver refuses).
  virtual std::unique_ptr<Registration> register_on(Device device, void* data,
                                                    std::int64_t bytes) = 0;
  // Messages of at most so many bytes from host memory cannot be received into device memory.
  virtual std::int64_t eager_bytes() const = 0;
  // One of the group's collectives, as a program of messages alone: nothing of `call`'s buffers is
  // touched by the host. Every rank calls it. `call.outer` is what ranks compare. Returns at once;
  // the buffers, all of them registered, belong to the Work until it is done. Errors are the
  // Work's: those of any collective between hosts, with the call's name.
  virtual WorkPtr exchange(Call call, algorithm::Program program) = 0;
};

}  // namespace shoal::collectives
