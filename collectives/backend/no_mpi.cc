#include "shoal/collectives/backend/backends.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::mpi {

std::unique_ptr<Communicator> make_mpi_communicator(const World&, Store&,
                                                    const CommunicatorOptions&) {
  throw Error(ErrorCode::unavailable, "this build has no mpi backend",
              "build with SHOAL_MPI=ON (needs libopenmpi-dev), or use the native backend");
}

}  // namespace shoal::collectives::mpi
