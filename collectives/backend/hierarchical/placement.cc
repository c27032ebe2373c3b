#include "shoal/collectives/backend/hierarchical/placement.h"

#include <algorithm>
#include <map>

#include "shoal/collectives/algorithm/canonical_tree.h"

namespace shoal::collectives::hierarchical {

Placement::Placement(const std::vector<std::string>& hosts) {
  std::map<std::string, int> numbers;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const int node =
        numbers.try_emplace(hosts[rank], static_cast<int>(numbers.size())).first->second;
    if (node == nodes()) members_.emplace_back();
    auto& members = members_[index(node)];
    node_.push_back(node);
    local_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(rank));
  }
  for (const auto& members : members_) {
    const int ranks = static_cast<int>(members.size());
    rails_ = rails_ == 0 ? ranks : std::min(rails_, ranks);
  }
}

std::vector<int> Placement::rail(int local_rank) const {
  std::vector<int> ranks;
  for (const auto& members : members_) ranks.push_back(members[index(local_rank)]);
  return ranks;
}

bool Placement::canonical() const {
  std::vector<int> sizes;
  for (const auto& members : members_) sizes.push_back(static_cast<int>(members.size()));
  return contiguous() && algorithm::canonical_over_groups(sizes);
}

bool Placement::contiguous() const {
  return std::ranges::all_of(members_, [](const std::vector<int>& members) {
    return members.back() - members.front() + 1 == static_cast<int>(members.size());
  });
}

}  // namespace shoal::collectives::hierarchical
