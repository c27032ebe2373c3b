#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::fabric {

FabricOptions fabric_options(const std::string& transport) {
  FabricOptions options;
  options.provider = transport.empty() ? env::get_string(env::kFabricProvider) : transport;
  // A user who names libfabric's layer itself turns the sockets off.
  options.sockets = options.provider != "tcp;ofi_rxm";
  options.interfaces = env::get_string(env::kFabricInterfaces);
  return options;
}

bool gpudirect_is_wanted() {
  const std::string text = env::get_string(env::kGpuDirect);
  if (text != "auto" && text != "off")
    throw_error(ErrorCode::invalid_argument, "{}='{}' is neither auto nor off; {}",
                env::kGpuDirect.name, text, env::kGpuDirect.help);
  return text == "auto";
}

}  // namespace shoal::collectives::fabric
