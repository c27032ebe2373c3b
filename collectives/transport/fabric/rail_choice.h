// Decides which rails a rank uses, and which of a peer's rails they reach. Pure functions of the
// ranks' surveys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::collectives::fabric {

// "eth0,eth1": only these; "^lo,docker0": all but these (Open MPI's btl_tcp_if_include/exclude).
struct InterfaceFilter {
  bool exclude = false;
  std::vector<std::string> names;

  // Whether the filter lets a rail through, given all its names (interface, network, address).
  bool admits(const std::vector<std::string_view>& aliases) const;
};
// Throws invalid_argument if '^' is not first, or a name is empty.
InterfaceFilter parse_interface_filter(std::string_view text);

// Whether `name` is a bridge or tunnel of container software. These have the same networks on every
// host, but are not connected to each other.
bool is_virtual_interface(std::string_view name);

// A rail that one rank found on its host.
struct RailSite {
  std::string name;     // "eth0"
  std::string network;  // rails of one network reach each other
  int distance = 0;     // from the rank's cores; 0: near
  friend bool operator==(const RailSite&, const RailSite&) = default;
};

// The sites that all ranks can use, for each rank as indices into its own list: those on networks
// that every rank has. If there is no common network, the k-th sites of all ranks pair up (routed
// networks), and `by_index` is set.
struct CommonRails {
  std::vector<std::vector<int>> sites;  // by rank
  bool by_index = false;
};
CommonRails find_common_rails(const std::vector<std::vector<RailSite>>& ranks);

// Shares one host's rails among its ranks. Each rank gets ceil(rails / ranks) rails, near ones
// first; rails at equal distance are used equally often. distances: [local rank][rail].
std::vector<std::vector<int>> share_rails(const std::vector<std::vector<int>>& distances);

// For each own rail, the peer's rail that it reaches: one on the same network, or -1. If both have
// several on a network, they pair up in order.
std::vector<int> pair_rails(const std::vector<std::string>& own_networks,
                            const std::vector<std::string>& peer_networks);

}  // namespace shoal::collectives::fabric
