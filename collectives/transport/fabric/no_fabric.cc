#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::fabric {

std::unique_ptr<transport::Endpoint> make_fabric_endpoint(const FabricOptions&, int, int, int, int,
                                                          Store&, const std::string&, Deadline) {
  throw Error(ErrorCode::unavailable, "this build has no libfabric transport",
              "build with SHOAL_LIBFABRIC=ON (needs libfabric-dev and libhwloc-dev)");
}

std::vector<std::string> fabric_providers() { return {}; }

}  // namespace shoal::collectives::fabric
