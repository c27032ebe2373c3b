// Turns one call into NCCL calls on its stream.
#pragma once

#include "shoal/collectives/backend/nccl/comm.h"
#include "shoal/collectives/call.h"

namespace shoal::collectives::nccl {

// gather, scatter and the unequal forms become sends, receives and reductions in one NCCL group.
// `word`: 4 bytes of the communicator's own device memory, for barrier.
ncclResult_t launch(const Call& call, ncclComm_t comm, int rank, int size, void* word);

}  // namespace shoal::collectives::nccl
