// Files of the source tree that tests read or run. One source is told where the tree lies, not
// every test: compiled once, a test then serves all checkouts (ccache; cmake/ShoalSettings.cmake).
#pragma once

#include <string>
#include <string_view>

namespace shoal::testing {

// RELATIVE to the root of the source tree, "docs/guides/parallelism.md"; empty: the root. Programs
// that run where they were not built are told the root by SHOAL_TEST_SOURCE_DIR.
std::string source_path(std::string_view relative);

}  // namespace shoal::testing
