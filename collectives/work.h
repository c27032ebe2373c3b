// One collective operation in flight.
//
//   WorkPtr work = communicator.all_reduce(data, data, count, DType::f32, ReduceOp::sum);
//   compute_meanwhile();  // does not touch data
//   work->wait();
#pragma once

#include <memory>

#include "shoal/runtime/device/device.h"

namespace shoal {
class Deadline;
}

namespace shoal::collectives {

// Not thread-safe. Dropping a Work does not cancel it: the progress thread finishes it. After an
// Error the Communicator has failed: everything in flight and every later call throws the Error,
// and this rank no longer touches any buffer.
//
// Two other actors may still touch buffers. Another rank of the host, still inside a step, may use
// this rank's symmetric memory (memory_resource()) until it has failed too. With the mpi backend,
// MPI may use all buffers until the process ends, because it cannot cancel collectives or sends.
class Work {
 public:
  virtual ~Work() = default;
  // Makes progress; true when done; throws the operation's Error. A caller that only calls test()
  // has a deadline too (native, mpi): the Communicator's own, from its first unfinished test().
  virtual bool test() = 0;
  // Blocks and makes progress itself. Throws timeout (naming the missing ranks), peer_lost,
  // mismatch or aborted.
  virtual void wait(Deadline deadline) = 0;
  virtual void wait();  // with the Communicator's own deadline
  virtual double default_deadline_seconds() const = 0;
  // Later work on `stream` waits for this operation. On host streams this is wait().
  virtual void block_stream(Stream stream);
};
using WorkPtr = std::unique_ptr<Work>;

}  // namespace shoal::collectives
