// A selector's answers for one group, worked out beforehand, because small operations have no time
// to walk a table: for each operation ranges of bytes with one answer.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "shoal/collectives/select/algorithm_selector.h"

namespace shoal::collectives {

class Choices {
 public:
  using Offers = std::span<const Algorithm> (*)(Operation);
  // `memory`: unknown where ranks cannot know that of the others.
  Choices(const AlgorithmSelector& selector, int ranks, int nodes, MemoryKind memory,
          Offers offers);
  // Of the operation without _v. algorithm is automatic where nothing is offered, or rules exclude
  // all of it: `why` says so.
  const Selection& at(Operation operation, std::int64_t bytes) const;

 private:
  struct Stretch {
    std::int64_t begin = 0;
    Selection selection;
  };
  std::array<std::vector<Stretch>, 16> stretches_;  // by operation
};

}  // namespace shoal::collectives
