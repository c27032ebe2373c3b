// Host lists and addresses for world discovery. Private to runtime/rendezvous.
#pragma once

#include <string>

namespace shoal {

// True if `host` (name or address) is one of this machine's own addresses, so that a socket can be
// bound to it. False if it does not resolve.
bool is_local_address(const std::string& host);
// The same, and none of the host's addresses is a loopback address, which other machines would not
// reach. Debian gives a machine's own name such an address.
bool is_own_on_network(const std::string& host);
// Looks only at the text; does not resolve names.
inline bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace shoal
