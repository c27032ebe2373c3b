// How a Communicator between hosts serves ranks whose buffers are in device memory: it sends from
// and receives into that memory directly (FI_HMEM, GPUDirect RDMA). Call it on the thread that
// makes the Communicator's calls.
//
// DeviceRdma knows no streams. Before the caller calls exchange(), a message's source must have
// been written, and its target must no longer be read. Once the Work is done, the caller calls
// PeerAccess::flush_cards_writes(). From then on the device sees the received data.
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
  // Why messages cannot use that device's memory. Empty: they can while the memory is registered.
  // Does not block.
  virtual std::string rdma_problem(Device device) const = 0;
  // Call on a thread whose current device is `device`. The caller owns [data, data + bytes) and
  // keeps it longer than the Registration, which it destroys after the Works that use it. Blocks
  // while the network card maps the memory. Throws the transport's error (unavailable if the card
  // or the driver refuses).
  virtual std::unique_ptr<Registration> register_on(Device device, void* data,
                                                    std::int64_t bytes) = 0;
  // Messages from host memory of at most this size cannot be received into device memory.
  virtual std::int64_t eager_bytes() const = 0;
  // Runs one of the group's collectives as a program that only sends and receives: the host does
  // not touch `call`'s buffers. Every rank calls it; ranks compare `call.outer`. Returns at once.
  // All buffers must be registered and belong to the Work until it is done. The Work throws the
  // same errors as any collective between hosts, with the call's name.
  virtual WorkPtr exchange(Call call, algorithm::Program program) = 0;
};

}  // namespace shoal::collectives
