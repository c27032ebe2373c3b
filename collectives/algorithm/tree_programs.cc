// Binomial trees: log2 n steps with the whole data. Slices flow up and down concurrently.
#include <algorithm>

#include "shoal/collectives/algorithm/generators.h"

namespace shoal::collectives::algorithm::generators {
namespace {

// A place is a rank's distance from the root. A child's subtree has `blocks` consecutive places,
// beginning with the child's own.
struct Tree {
  Tree(Member member, int root_rank)
      : size(member.size),
        place((member.rank - root_rank + member.size) % member.size),
        root(root_rank) {
    int mask = 1;
    while (mask < size && (place & mask) == 0) {
      if (place + mask < size) children.push_back(place + mask);
      mask *= 2;
    }
    if (place != 0) parent = place - mask;
    blocks = std::min(mask, size - place);
  }
  int rank(int at) const { return (at + root) % size; }
  // Whether a place has no children: it then sends its own input.
  bool leaf(int at) const { return at % 2 == 1 || at + 1 >= size; }
  int blocks_of(int child) const { return std::min(child - place, size - child); }

  int size, place, root;
  int parent = -1;            // place of the parent; -1 at the root
  std::vector<int> children;  // places, the smallest subtree first
  int blocks;                 // ranks of this subtree, including this one
};

void tree_reduce(ProgramBuilder& b, const Tree& tree, std::int64_t count, Slicing slicing) {
  const Slices slices = slices_of(count, slicing);
  const std::int64_t turns = std::min(kSlicesInFlight, slices.number());
  const std::size_t children = tree.children.size();
  std::vector<Piece> arrivals, sums;  // [turn][child], [turn]
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (const int child : tree.children)
      arrivals.push_back(tree.leaf(child) ? b.new_scratch(slices.at(0).size())
                                          : b.new_partial(slices.at(0).size()));
    if (tree.parent >= 0 && children > 0) sums.push_back(b.new_partial(slices.at(0).size()));
  }
  for (std::int64_t k = 0; k < slices.number(); ++k) {
    const Range s = slices.at(k);
    const auto turn = static_cast<std::size_t>(k % turns);
    std::vector<Piece> sources{{Space::input, s.begin, s.size()}};
    for (std::size_t child = 0; child < children; ++child) {
      sources.push_back(part(arrivals[turn * children + child], {0, s.size()}));
      b.receive(tree.rank(tree.children[child]), sources.back());
    }
    if (tree.parent < 0) {
      b.reduce(std::move(sources), {Space::output, s.begin, s.size()}, true);
    } else if (children == 0) {
      b.send(tree.rank(tree.parent), sources[0]);
    } else {
      const Piece sum = part(sums[turn], {0, s.size()});
      b.reduce(std::move(sources), sum);
      b.send(tree.rank(tree.parent), sum);
    }
  }
}

void tree_broadcast(ProgramBuilder& b, const Tree& tree, std::int64_t count, Slicing slicing) {
  const Slices slices = slices_of(count, slicing);
  for (std::int64_t k = 0; k < slices.number(); ++k) {
    const Piece piece = part({Space::output, 0, count}, slices.at(k));
    if (tree.parent >= 0) b.receive(tree.rank(tree.parent), piece);
    for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child)
      b.send(tree.rank(*child), piece);  // the largest subtree takes longest
  }
}

}  // namespace

Program tree_all_reduce(Member member, std::int64_t count, Slicing slicing) {
  ProgramBuilder b(member, 0);
  const Tree tree(member, 0);
  tree_reduce(b, tree, count, slicing);
  tree_broadcast(b, tree, count, slicing);
  return b.take();
}

Program tree_broadcast(Member member, std::int64_t count, int root, Slicing slicing) {
  ProgramBuilder b(member, std::nullopt);
  tree_broadcast(b, Tree(member, root), count, slicing);
  return b.take();
}

Program tree_reduce(Member member, std::int64_t count, int root, Slicing slicing) {
  ProgramBuilder b(member, 0);
  tree_reduce(b, Tree(member, root), count, slicing);
  return b.take();
}

// The blocks of a subtree are consecutive by place. In the root's buffer, which is in rank order,
// they may wrap around the end; such blocks pass through scratch.
Program tree_gather(Member member, std::int64_t count, int root) {
  const Tree tree(member, root);
  const bool at_root = tree.place == 0;
  ProgramBuilder b(member, at_root ? std::optional(root * count) : std::nullopt);
  const Piece input{Space::input, 0, count};
  if (!at_root) {
    const Piece all = tree.blocks > 1 ? b.new_scratch(tree.blocks * count) : input;
    if (tree.blocks > 1) b.copy(input, part(all, {0, count}));
    for (const int child : tree.children) {
      const std::int64_t first = (child - tree.place) * count;
      b.receive(tree.rank(child), part(all, {first, first + tree.blocks_of(child) * count}));
    }
    b.send(tree.rank(tree.parent), all);
    return b.take();
  }
  for (const int child : tree.children) {
    const int first = tree.rank(child), blocks = tree.blocks_of(child);
    const int before_end = std::min(blocks, tree.size - first);
    if (before_end == blocks) {
      b.receive(first, {Space::output, first * count, blocks * count});
      continue;
    }
    const Piece all = b.new_scratch(blocks * count);
    b.receive(first, all);
    b.copy(part(all, {0, before_end * count}), {Space::output, first * count, before_end * count});
    b.copy(part(all, {before_end * count, blocks * count}),
           {Space::output, 0, (blocks - before_end) * count});
  }
  b.copy(input, {Space::output, root * count, count});
  return b.take();
}

Program tree_scatter(Member member, std::int64_t count, int root) {
  const Tree tree(member, root);
  const bool at_root = tree.place == 0;
  ProgramBuilder b(member, at_root ? std::optional(-root * count) : std::nullopt);
  const Piece output{Space::output, 0, count};
  if (!at_root) {
    const Piece all = tree.blocks > 1 ? b.new_scratch(tree.blocks * count) : output;
    b.receive(tree.rank(tree.parent), all);
    for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) {
      const std::int64_t first = (*child - tree.place) * count;
      b.send(tree.rank(*child), part(all, {first, first + tree.blocks_of(*child) * count}));
    }
    if (tree.blocks > 1) b.copy(part(all, {0, count}), output);
    return b.take();
  }
  for (auto child = tree.children.rbegin(); child != tree.children.rend(); ++child) {
    const int first = tree.rank(*child), blocks = tree.blocks_of(*child);
    const int before_end = std::min(blocks, tree.size - first);
    Piece all{Space::input, first * count, blocks * count};
    if (before_end < blocks) {
      all = b.new_scratch(blocks * count);
      b.copy({Space::input, first * count, before_end * count}, part(all, {0, before_end * count}));
      b.copy({Space::input, 0, (blocks - before_end) * count},
             part(all, {before_end * count, blocks * count}));
    }
    b.send(first, all);
  }
  b.copy({Space::input, root * count, count}, output);
  return b.take();
}

}  // namespace shoal::collectives::algorithm::generators
