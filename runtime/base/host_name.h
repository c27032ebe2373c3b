#pragma once

#include <array>
#include <string>

#include <unistd.h>

namespace shoal {

// This host's name from gethostname(2); empty if that fails.
inline std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace shoal
