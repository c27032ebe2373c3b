// Times work that all ranks of a host do at once. Collective.
#pragma once

#include <functional>

#include "shoal/collectives/communicator.h"

namespace shoal::parallel {

class RankBench {
 public:
  explicit RankBench(collectives::Communicator& ranks) : ranks_(ranks) {}

  // Seconds of `body` on the slowest rank: it runs once unmeasured, then 3 to 15 times, each time
  // on all ranks together. The median counts.
  double time(const std::function<void()>& body);
  double slowest(double seconds);  // the largest of all ranks' values
  collectives::Communicator& ranks() { return ranks_; }

 private:
  collectives::Communicator& ranks_;
};

}  // namespace shoal::parallel
