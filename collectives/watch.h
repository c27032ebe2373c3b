// Lets a host thread wait for a stream itself although ranks may be lost.
//
// With NCCL, operations run on streams, and one with a missing rank blocks its stream forever. A
// host thread that waits for that stream through the driver (to read a loss, a norm or a
// checkpoint's tensors) would then never return. PyTorch has a watchdog thread for this
// (TORCH_NCCL_ASYNC_ERROR_HANDLING); Shoal checks in the waits themselves.
#pragma once

#include "shoal/collectives/communicator.h"

namespace shoal::collectives {

// Call before waiting for `stream`. Blocks until everything queued there so far has run, with the
// deadline and the errors of Work::wait(). Where hosts take part in operations (native, mpi), it
// waits for the last one only. Returns at once for a single rank. Not an operation: other ranks
// need not call it.
void watch(Communicator& ranks, Stream stream);

}  // namespace shoal::collectives
