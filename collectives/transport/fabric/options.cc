#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/env.h"

namespace shoal::collectives {

FabricOptions fabric_options(const std::string& transport) {
  FabricOptions options;
  options.provider = transport.empty() ? env::get_string(env::kFabricProvider) : transport;
  // Who asks for libfabric's layer by its own name gets that alone.
  options.sockets = options.provider != "tcp;ofi_rxm";
  options.interfaces = env::get_string(env::kFabricInterfaces);
  return options;
}

}  // namespace shoal::collectives
