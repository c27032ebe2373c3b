// Gives this process, and those it forks, the EFA that is none (support/efa_provider). Call it
// before libfabric is first used; link shoal_test_efa.
#pragma once

#include <cstdlib>

namespace shoal::test {

// interfaces: one card for each, "lo,lo" has two.
inline void use_efa_provider(const char* interfaces = "lo") {
  ::setenv("FI_PROVIDER_PATH", SHOAL_TEST_EFA_DIRECTORY, 1);
  ::setenv("SHOAL_TEST_EFA_INTERFACES", interfaces, 1);
}

}  // namespace shoal::test
