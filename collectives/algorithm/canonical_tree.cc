#include "shoal/collectives/algorithm/canonical_tree.h"

#include <cstddef>
#include <numeric>

#include "shoal/collectives/algorithm/folding.h"

namespace shoal::collectives::algorithm {

bool canonical_over_groups(std::span<const int> sizes) {
  if (sizes.size() < 2) return true;
  const auto left =
      sizes.first(static_cast<std::size_t>(canonical_left(static_cast<int>(sizes.size()))));
  const auto right = sizes.subspan(left.size());
  const int ranks_left = std::reduce(left.begin(), left.end());
  return ranks_left == canonical_left(ranks_left + std::reduce(right.begin(), right.end())) &&
         canonical_over_groups(left) && canonical_over_groups(right);
}

bool recursive_doubling_is_canonical(int size) {
  const generators::Folding folding({0, size});
  std::vector<int> ranks;  // number of ranks that each core rank represents
  for (int place = 0; place < folding.core; ++place)
    ranks.push_back(folding.speaks_for_two(place) ? 2 : 1);
  return canonical_over_groups(ranks);
}

}  // namespace shoal::collectives::algorithm
