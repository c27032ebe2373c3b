// One collective operation in flight.
#pragma once

#include <memory>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {

// Not thread-safe. Dropping a Work does not cancel it: the progress thread finishes it. After an
// Error the Communicator has failed: everything in flight and every later call throws it, and this
// rank touches no buffer any more. What may: another rank of the host that is still in a step, this
// rank's symmetric memory (memory_resource()), until it has failed too; MPI (mpi), whatever it has
// begun, all buffers and until the process ends, for MPI cancels neither collectives nor sends.
class Work {
 public:
  virtual ~Work() = default;
  // Makes progress; true when done; throws the operation's Error. Who only tests has a deadline
  // too (native, mpi): the Communicator's own, from the first test that found it unfinished.
  virtual bool test() = 0;
  // Blocks and drives progress itself. Throws timeout (naming the missing ranks), peer_lost,
  // mismatch or aborted.
  virtual void wait(Deadline deadline) = 0;
  virtual void wait();  // with the Communicator's own deadline
  virtual double default_deadline_seconds() const = 0;
  // Later work on `stream` waits for this one. On host streams the same as wait().
  virtual void block_stream(Stream stream);
};
using WorkPtr = std::unique_ptr<Work>;

}  // namespace shoal::collectives
