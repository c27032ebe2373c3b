// The binary tree over ranks by which reductions sum in fixed order (decision 6). The left child of
// a node of n ranks has the largest power of two below n, the right one the rest (the tree of a
// binary counter; RFC 6962, 2.1).
//
// Ranks [i·2^k, (i+1)·2^k) are therefore a subtree for any number of ranks. If all hosts have the
// same power-of-two number of ranks, each host reduces a subtree. Pure arithmetic.
#pragma once

#include <bit>
#include <span>
#include <vector>

namespace shoal::collectives::algorithm {

// Ranks of the left child of a node of `size` ranks; size > 1.
constexpr int canonical_left(int size) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(size) - 1));
}

// Evaluates the tree over `size` terms with a stack: leaf(i) pushes term i; combine() replaces the
// two topmost by their sum, the lower one being the left operand. The stack holds at most
// canonical_depth(size) terms.
template <typename Leaf, typename Combine>
void walk_canonical_tree(int size, Leaf&& leaf, Combine&& combine) {
  for (int i = 0; i < size; ++i) {
    leaf(i);
    for (unsigned done = static_cast<unsigned>(i) + 1; done % 2 == 0; done /= 2) combine();
  }
  for (int left = std::popcount(static_cast<unsigned>(size)); left > 1; --left) combine();
}
constexpr int canonical_depth(int size) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(size)));
}

// Ranks form groups of `sizes` consecutive ranks. Returns true if every group is a subtree and the
// levels above are the canonical tree over the groups. All ranks' canonical sum then equals the
// canonical sum of the groups' canonical sums.
bool canonical_over_groups(std::span<const int> sizes);

// Whether recursive doubling among `size` ranks (folding.h) sums by the canonical tree.
bool recursive_doubling_is_canonical(int size);

}  // namespace shoal::collectives::algorithm
