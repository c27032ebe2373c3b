// The entry point that libfabric calls when it loads libshoal_efa-fi.so.
#include "domain.h"
#include "info.h"
#include <rdma/providers/fi_prov.h>

extern "C" FI_EXT_INI {
  using namespace shoal::test::efa;
  static fi_provider provider{// Newer than any real provider, so that libfabric prefers it.
                              .version = FI_VERSION(9999, 0),
                              .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
                              .context = {},
                              .name = "efa",
                              .getinfo = get_info,
                              .fabric = open_fabric,
                              .cleanup = [] {}};
  return &provider;
}
