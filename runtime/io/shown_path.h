// Paths and patterns in messages.
#pragma once

#include <string>
#include <string_view>

#include "shoal/runtime/base/shortened.h"

namespace shoal {

// A path on one line, cut at 1000 bytes.
inline std::string shown_path(std::string_view path) { return shortened(path, 1000); }

}  // namespace shoal
