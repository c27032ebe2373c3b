// Lets a host thread wait safely for a stream although ranks may be lost.
//
// With NCCL, operations run on streams, and an operation with a missing rank blocks its stream
// forever. A host thread that waits for that stream through the driver (to read a loss, a norm or a
// checkpoint's tensors) would then never return. PyTorch has a watchdog thread for this
// (TORCH_NCCL_ASYNC_ERROR_HANDLING); Shoal checks in the waits themselves.
#pragma once

#include "shoal/collectives/communicator.h"

namespace shoal::collectives {

// Call before waiting for `stream`. Blocks until everything queued there so far has run, with the
// deadline and the errors of Work::wait(). If host threads take part in operations (native, mpi),
// waits for the last operation only. Returns at once for a single rank. Not collective.
void watch(Communicator& ranks, Stream stream);

}  // namespace shoal::collectives
