// Paths and patterns in messages.
#pragma once

#include <string>
#include <string_view>

#include "shoal/runtime/base/shortened.h"

namespace shoal {

// In one line, and in part if it is longer than nearly every path that there is.
inline std::string shown_path(std::string_view path) { return shortened(path, 1000); }

}  // namespace shoal
