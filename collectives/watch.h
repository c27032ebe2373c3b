// For a host that waits for a stream itself, where ranks may be lost.
//
// Where operations run on streams (nccl), one that a rank is missing from stands in its stream for
// ever, and so does whoever waits for that stream by the driver's calls: reading a loss, a norm, a
// checkpoint's tensors. PyTorch has a thread that watches for it (TORCH_NCCL_ASYNC_ERROR_HANDLING);
// here the waits do.
#pragma once

#include "shoal/collectives/communicator.h"

namespace shoal::collectives {

// Before a wait for `stream`: blocks until all that is queued there by now has run, with the
// deadline and the errors of Work::wait(). Returns at once where hosts take part in operations
// (native, mpi), and so end them, and of one rank. No operation: ranks need not make the same
// calls.
void watch(Communicator& ranks, Stream stream);

}  // namespace shoal::collectives
