// Files of the source tree that tests read or run. Only source_tree.cc contains the path of the
// tree, so compiled tests are identical in all checkouts and ccache reuses them
// (cmake/ShoalSettings.cmake).
#pragma once

#include <string>
#include <string_view>

namespace shoal::testing {

// Returns the absolute path of RELATIVE, such as "docs/guides/parallelism.md", in the source tree;
// empty: the root. SHOAL_TEST_SOURCE_DIR gives the root to programs that run on another machine
// than the one that built them.
std::string source_path(std::string_view relative);

}  // namespace shoal::testing
