// Which rails a rank uses, and which of a peer's rails they reach: pure functions of the ranks'
// surveys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::collectives::fabric {

// "eth0,eth1": only these; "^lo,docker0": all but these (Open MPI's btl_tcp_if_include/exclude).
struct InterfaceFilter {
  bool exclude = false;
  std::vector<std::string> names;

  // Matches any of a rail's names (interface, network, address).
  bool admits(const std::vector<std::string_view>& aliases) const;
};
// Throws invalid_argument if '^' is not first, or a name is empty.
InterfaceFilter parse_interface_filter(std::string_view text);

// Bridges and tunnels of container software: the same networks on every host, but not connected.
bool is_virtual_interface(std::string_view name);

// A rail that one rank found on its host.
struct RailSite {
  std::string name;     // "eth0"
  std::string network;  // rails of one network reach each other
  int distance = 0;     // from the rank's cores; 0: near
  friend bool operator==(const RailSite&, const RailSite&) = default;
};

// For each rank, the sites (by index into its own list) that all ranks can use: those on networks
// that every rank has. If there is no common network, the k-th sites of all ranks pair up (routed
// networks), and `by_index` is set.
struct CommonRails {
  std::vector<std::vector<int>> sites;  // by rank
  bool by_index = false;
};
CommonRails find_common_rails(const std::vector<std::vector<RailSite>>& ranks);

// Shares rails 0 .. rails-1 of one host among its ranks. Each gets ceil(rails / ranks), near ones
// first, with all rails used equally often if distances permit. distances: [local rank][rail].
std::vector<std::vector<int>> share_rails(const std::vector<std::vector<int>>& distances);

// For each of `own`, the peer's rail that it reaches: one of the same network, and of several the
// one at the same position. -1 if the peer has none on that network.
std::vector<int> pair_rails(const std::vector<std::string>& own_networks,
                            const std::vector<std::string>& peer_networks);

}  // namespace shoal::collectives::fabric
