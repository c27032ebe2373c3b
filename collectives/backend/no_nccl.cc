#include "shoal/collectives/backend/backends.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::nccl {

std::unique_ptr<Communicator> make_nccl_communicator(const World&, Store&,
                                                     const CommunicatorOptions&) {
  throw Error(ErrorCode::unavailable, "this build has no nccl backend",
              "build with SHOAL_CUDA=ON where nccl.h is, or use the native backend");
}

std::string nccl_problem() { return "this build has no nccl backend"; }

}  // namespace shoal::collectives::nccl
