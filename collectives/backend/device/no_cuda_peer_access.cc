// Linked if SHOAL_CUDA is OFF.
#include "shoal/collectives/backend/device/peer_memory.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::device {

std::unique_ptr<PeerAccess> make_cuda_peer_access(Device) {
  throw Error(ErrorCode::unavailable, "this build of Shoal has no CUDA",
              "configure with -DSHOAL_CUDA=ON, or use the device cpu");
}

}  // namespace shoal::collectives::device
