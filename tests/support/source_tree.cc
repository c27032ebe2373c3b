#include "support/source_tree.h"

#include <cstdlib>

namespace shoal::testing {

std::string source_path(std::string_view relative) {
  const char* const set = std::getenv("SHOAL_TEST_SOURCE_DIR");
  const std::string root = set != nullptr ? set : SHOAL_SOURCE_DIR;
  return relative.empty() ? root : root + "/" + std::string(relative);
}

}  // namespace shoal::testing
