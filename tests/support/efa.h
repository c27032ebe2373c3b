// Makes this process and its children use the simulated EFA (support/efa_provider). Call it before
// libfabric is first used. Link shoal_test_efa.
#pragma once

#include <cstdlib>

namespace shoal::test {

// `interfaces` lists one interface for each card: "lo,lo" makes two cards.
inline void use_efa_provider(const char* interfaces = "lo") {
  ::setenv("FI_PROVIDER_PATH", SHOAL_TEST_EFA_DIRECTORY, 1);
  ::setenv("SHOAL_TEST_EFA_INTERFACES", interfaces, 1);
}

}  // namespace shoal::test
