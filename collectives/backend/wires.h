// What a Communicator between hosts offers to ranks whose buffers are in device memory: messages
// straight from there and into there (FI_HMEM, GPUDirect RDMA). Used by the thread of its calls.
#pragma once

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {

struct Program;  // algorithm/program.h

class Wires {
 public:
  virtual ~Wires() = default;
  // Why messages cannot lie in that device's memory; empty: they can, while it is registered.
  virtual std::string wires_problem(Device device) const = 0;
  // On a thread on which the device is current. Throws what the transport says.
  virtual std::unique_ptr<Registration> register_on(Device device, void* data,
                                                    std::int64_t bytes) = 0;
  // Messages of at most so many bytes from host memory cannot be received into device memory.
  virtual std::int64_t eager_bytes() const = 0;
  // One of the group's collectives, as a program of messages alone: nothing of `call`'s buffers is
  // touched here. Every rank calls it. `call.outer` is what ranks compare.
  virtual WorkPtr exchange(Call call, Program program) = 0;
};

}  // namespace shoal::collectives
