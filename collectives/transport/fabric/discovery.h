// Finds the rails of this host: fi_getinfo gives providers and interfaces, hwloc the distances.
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

// Returns one rail for each card or interface, ordered by name. `one_host`: all ranks are on this
// host, so loopback suffices. Throws unavailable, naming the choices that fi_getinfo offers here.
std::vector<FoundRail> find_rails(const FabricOptions& options, bool one_host);

}  // namespace shoal::collectives::fabric
