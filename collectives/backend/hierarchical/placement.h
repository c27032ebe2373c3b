// Which rank of a group lies on which host, and the rails that follow: pure arithmetic.
#pragma once

#include <string>
#include <vector>

namespace shoal::collectives::hierarchical {

class Placement {
 public:
  // `hosts`: the host's name by rank. Nodes are numbered in the order of their lowest ranks.
  explicit Placement(const std::vector<std::string>& hosts);

  int size() const { return static_cast<int>(node_.size()); }
  int nodes() const { return static_cast<int>(members_.size()); }
  int node_of(int rank) const { return node_[index(rank)]; }
  int local_rank(int rank) const { return local_[index(rank)]; }
  // Ranks of a node, ascending: its local ranks in order.
  const std::vector<int>& members(int node) const { return members_[index(node)]; }
  int local_size(int node) const { return static_cast<int>(members(node).size()); }
  // As many as the smallest node has ranks: rail i joins local rank i of all nodes. Ranks beyond
  // have no rail; their shards are empty.
  int rails() const { return rails_; }
  std::vector<int> rail(int local_rank) const;
  // Each node's ranks follow each other, so that its part of a gathered buffer is one piece.
  bool contiguous() const;
  // Contiguous, and the canonical tree over all ranks is that over the nodes, each a subtree.
  bool canonical() const;

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::vector<int> node_, local_;          // by rank
  std::vector<std::vector<int>> members_;  // by node
  int rails_ = 0;
};

}  // namespace shoal::collectives::hierarchical
