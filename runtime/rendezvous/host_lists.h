// Host lists and addresses for world discovery. Not for other rooms.
#pragma once

#include <string>

namespace shoal {

// Whether `host` (name or address) is one of this machine's own addresses: something can be bound
// to it. False also when it does not resolve.
bool is_local_address(const std::string& host);

}  // namespace shoal
