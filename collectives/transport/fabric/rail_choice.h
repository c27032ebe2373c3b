// Which rails a rank uses, and which of a peer's it reaches with them: pure functions of what all
// ranks told each other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::collectives::fabric {

// "eth0,eth1": only these; "^lo,docker0": all but these (Open MPI's btl_tcp_if_include/exclude).
struct InterfaceFilter {
  bool exclude = false;
  std::vector<std::string> names;

  // Any of a rail's names (interface, network, address) may be meant.
  bool admits(const std::vector<std::string_view>& aliases) const;
};
// invalid_argument when '^' stands anywhere but first, or a name is empty.
InterfaceFilter parse_interface_filter(std::string_view text);

// Bridges and tunnels of container software: the same networks on every host, connected to none.
bool is_virtual_interface(std::string_view name);

// What one rank found on its host.
struct RailSite {
  std::string name;     // "eth0"
  std::string network;  // rails of one network reach each other
  int distance = 0;     // from the rank's cores; 0: near
  friend bool operator==(const RailSite&, const RailSite&) = default;
};

// For each rank the sites (by index into its own list) that all ranks can use: those whose network
// everybody has. Where no network is common the k-th site of each pairs with the k-th of the others
// (routed networks); `by_index` says so.
struct CommonRails {
  std::vector<std::vector<int>> sites;  // by rank
  bool by_index = false;
};
CommonRails find_common_rails(const std::vector<std::vector<RailSite>>& ranks);

// Rails 0 .. rails-1 of one host shared among its ranks: each gets ceil(rails / ranks), near ones
// first, all rails used equally often where distances allow. distances: [local rank][rail].
std::vector<std::vector<int>> share_rails(const std::vector<std::vector<int>>& distances);

// The peer's rail that each of `own` reaches: the same network, and of several the one in the same
// place of the order; -1 where the peer has none of that network.
std::vector<int> pair_rails(const std::vector<std::string>& own_networks,
                            const std::vector<std::string>& peer_networks);

}  // namespace shoal::collectives::fabric
