#include "shoal/collectives/backend/backends.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {

std::unique_ptr<Communicator> make_nccl_communicator(const World&, Store&,
                                                     const CommunicatorOptions&) {
  throw Error(ErrorCode::unavailable, "the nccl backend is not in this version",
              "use --backend native (or mpi)");
}

}  // namespace shoal::collectives
