// The version of all programs, and what they were built from.
#pragma once

#include <string>

namespace shoal::app {

// The commit's abbreviated hash; empty if the sources were built outside a git repository.
const char* commit();
// "0.1.0 (commit 1a2b3c4, Release)"
std::string version_and_build();

}  // namespace shoal::app
