#include "version.h"

#include "shoal_commit.h"
#include <fmt/format.h>

namespace shoal::app {

const char* commit() { return SHOAL_COMMIT; }

std::string version_and_build() {
  return fmt::format("{} (commit {}, {})", SHOAL_VERSION, *commit() == '\0' ? "unknown" : commit(),
                     SHOAL_BUILD_TYPE);
}

}  // namespace shoal::app
