// A selector's answers for one group, computed beforehand because small operations have no time to
// walk the table: for each operation, ranges of bytes with one answer each.
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
  // `memory`: unknown if ranks cannot know where the other ranks' buffers are.
  Choices(const AlgorithmSelector& selector, int ranks, int nodes, MemoryKind memory,
          Offers offers);
  // `operation` without _v. The algorithm is automatic if nothing is offered or the rules exclude
  // every candidate; `why` then gives the reason.
  const Selection& at(Operation operation, std::int64_t bytes) const;

 private:
  struct Stretch {
    std::int64_t begin = 0;
    Selection selection;
  };
  std::array<std::vector<Stretch>, 16> stretches_;  // by operation
};

}  // namespace shoal::collectives
