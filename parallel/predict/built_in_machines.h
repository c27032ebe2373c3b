// The files of machines/, as CMake puts them into the library.
#pragma once

#include <span>
#include <string_view>

namespace shoal::parallel {

struct BuiltInMachine {
  std::string_view name, json;
};
std::span<const BuiltInMachine> built_in_machines();

}  // namespace shoal::parallel
