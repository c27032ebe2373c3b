#include "shoal/collectives/transport/fabric/rail_choice.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal::collectives::fabric {

bool InterfaceFilter::admits(const std::vector<std::string_view>& aliases) const {
  const bool named = std::ranges::any_of(aliases, [&](std::string_view alias) {
    return std::ranges::find(names, alias) != names.end();
  });
  return named != exclude;
}

InterfaceFilter parse_interface_filter(std::string_view text) {
  InterfaceFilter filter;
  const std::string_view whole = text;
  if (text.starts_with('^')) {
    filter.exclude = true;
    text.remove_prefix(1);
  }
  while (true) {
    const std::size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    if (name.empty() || name.find_first_of("^ \t") != std::string_view::npos)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("network interfaces '{}': '{}' is not a name", shortened(whole),
                              shortened(name)),
                  "write eth0,eth1 for only these, ^lo,docker0 for all but these");
    filter.names.emplace_back(name);
    if (comma == std::string_view::npos) return filter;
    text.remove_prefix(comma + 1);
  }
}

bool is_virtual_interface(std::string_view name) {
  constexpr std::array<std::string_view, 8> kPrefixes{"docker", "virbr", "br-",     "veth",
                                                      "cni",    "cali",  "flannel", "tun"};
  return std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

CommonRails find_common_rails(const std::vector<std::vector<RailSite>>& ranks) {
  CommonRails common;
  common.sites.resize(ranks.size());
  std::set<std::string> shared;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::set<std::string> own;
    for (const RailSite& site : ranks[rank]) own.insert(site.network);
    if (rank == 0) shared = own;
    std::erase_if(shared, [&](const std::string& network) { return !own.contains(network); });
  }
  common.by_index = shared.empty();
  std::size_t fewest = ranks.empty() ? 0 : ranks[0].size();
  for (const auto& sites : ranks) fewest = std::min(fewest, sites.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (std::size_t i = 0; i < ranks[rank].size(); ++i)
      if (common.by_index ? i < fewest : shared.contains(ranks[rank][i].network))
        common.sites[rank].push_back(static_cast<int>(i));
  return common;
}

std::vector<std::vector<int>> share_rails(const std::vector<std::vector<int>>& distances) {
  const auto ranks = static_cast<int>(distances.size());
  std::vector<std::vector<int>> shares(distances.size());
  if (ranks == 0 || distances[0].empty()) return shares;
  const auto rails = static_cast<int>(distances[0].size());
  std::vector<int> uses(distances[0].size(), 0);
  const int each = (rails + ranks - 1) / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<int> order(static_cast<std::size_t>(rails));
    std::iota(order.begin(), order.end(), 0);
    const auto& distance = distances[static_cast<std::size_t>(rank)];
    std::ranges::sort(order, {}, [&](int rail) {
      const auto r = static_cast<std::size_t>(rail);
      return std::tuple(r < distance.size() ? distance[r] : 0, uses[r], rail);
    });
    order.resize(static_cast<std::size_t>(each));
    std::ranges::sort(order);
    for (const int rail : order) ++uses[static_cast<std::size_t>(rail)];
    shares[static_cast<std::size_t>(rank)] = std::move(order);
  }
  return shares;
}

std::vector<int> pair_rails(const std::vector<std::string>& own_networks,
                            const std::vector<std::string>& peer_networks) {
  std::vector<int> pairs;
  for (std::size_t i = 0; i < own_networks.size(); ++i) {
    std::vector<int> candidates;
    for (std::size_t k = 0; k < peer_networks.size(); ++k)
      if (peer_networks[k] == own_networks[i]) candidates.push_back(static_cast<int>(k));
    const auto place = static_cast<std::size_t>(
        std::count(own_networks.begin(), own_networks.begin() + static_cast<std::ptrdiff_t>(i),
                   own_networks[i]));
    pairs.push_back(candidates.empty() ? -1 : candidates[place % candidates.size()]);
  }
  return pairs;
}

}  // namespace shoal::collectives::fabric
