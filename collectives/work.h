// One collective operation in flight.
#pragma once

#include <memory>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {

// Not thread-safe. Dropping a Work does not cancel it: the progress
// thread finishes it. After an Error the Communicator has failed: everything in flight and every
// later call throws the same Error, and no buffer is touched any more.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool test() = 0;  // makes progress; true when done; throws the operation's Error
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
