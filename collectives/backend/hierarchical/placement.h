// The host and the rail of each rank of a group. Pure arithmetic.
#pragma once

#include <string>
#include <vector>

namespace shoal::collectives::hierarchical {

class Placement {
 public:
  // `hosts`: host name of each rank. Nodes are numbered in the order of their lowest ranks.
  explicit Placement(const std::vector<std::string>& hosts);

  int size() const { return static_cast<int>(node_.size()); }
  int nodes() const { return static_cast<int>(members_.size()); }
  int node_of(int rank) const { return node_[index(rank)]; }
  int local_rank(int rank) const { return local_[index(rank)]; }
  // Ranks of a node in ascending order, which is the order of their local ranks.
  const std::vector<int>& members(int node) const { return members_[index(node)]; }
  int local_size(int node) const { return static_cast<int>(members(node).size()); }
  // Number of rails: the rank count of the smallest node. Rail i joins local rank i of all nodes.
  // Other ranks have no rail and empty shards.
  int rails() const { return rails_; }
  std::vector<int> rail(int local_rank) const;
  // Whether each node's ranks are consecutive, so that its part of a gathered buffer is one range.
  bool contiguous() const;
  // Whether the placement is contiguous, each node is a subtree of the canonical tree over all
  // ranks, and the levels above form the tree over nodes.
  bool canonical() const;

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::vector<int> node_, local_;          // by rank
  std::vector<std::vector<int>> members_;  // by node
  int rails_ = 0;
};

}  // namespace shoal::collectives::hierarchical
