// How a Communicator between hosts serves ranks whose buffers are in device memory: messages are
// sent from and received into it directly (FI_HMEM, GPUDirect RDMA). Used by the thread that makes
// its calls.
//
// DeviceRdma knows no streams. Before exchange() is called, a message's source must have been
// written, and its target must no longer be read. The device sees data from the network card once
// PeerAccess::flush_cards_writes() has returned after the Work.
#pragma once

#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives::algorithm {
struct Program;
}

namespace shoal::collectives {

class DeviceRdma {
 public:
  virtual ~DeviceRdma() = default;
  // Why messages cannot use that device's memory; empty: they can while it is registered. Does not
  // block.
  virtual std::string rdma_problem(Device device) const = 0;
  // Call on a thread whose current device is `device`. The caller owns [data, data + bytes) and
  // must keep it longer than the Registration. Destroy that after the Works that use it. Blocks
  // while the card maps the memory. Throws the transport's error (unavailable if the card or the
  // driver refuses).
  virtual std::unique_ptr<Registration> register_on(Device device, void* data,
                                                    std::int64_t bytes) = 0;
  // Messages of at most this size from host memory cannot be received into device memory.
  virtual std::int64_t eager_bytes() const = 0;
  // Runs one of the group's collectives as a program that only sends and receives: the host does
  // not touch `call`'s buffers. Every rank calls it; ranks compare `call.outer`. Returns at once.
  // All buffers must be registered and belong to the Work until it is done. The Work throws the
  // errors of any collective between hosts, with the call's name.
  virtual WorkPtr exchange(Call call, algorithm::Program program) = 0;
};

}  // namespace shoal::collectives
