// libfabric, which is loaded when the first group needs a network between hosts. Linking it would
// cost every program 0.35 s before main: Debian's libfabric brings libinfinipath, which measures
// the clock while it is loaded.
#pragma once

#include <rdma/fabric.h>

namespace shoal::collectives::fabric {

// The functions that libfabric exports. All its others are inline functions of its headers.
struct Library {
  decltype(&::fi_version) version = nullptr;
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
};

// The first call loads it, keeps the process's signal handlers, and may block for a second. It
// stays loaded. Any thread. Throws unavailable if it is missing, or older than the one that
// Shoal was built with.
//
//   library().fabric(info->fabric_attr, &fabric, nullptr);
const Library& library();

}  // namespace shoal::collectives::fabric
