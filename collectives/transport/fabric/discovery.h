// The rails of this host: fi_getinfo for providers and interfaces, hwloc for distances.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/collectives/transport/fabric/rail_choice.h"
#include "shoal/collectives/transport/fabric/resources.h"

namespace shoal::collectives::fabric {

struct FoundRail {
  FiInfo info;
  RailSite site;
};

// In a fixed order (by name), one for each card or interface. `one_host`: all ranks are on this
// host, so loopback suffices. Throws unavailable, naming what fi_getinfo offers here.
std::vector<FoundRail> find_rails(const FabricOptions& options, bool one_host);

}  // namespace shoal::collectives::fabric
