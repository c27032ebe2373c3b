// Time limits on a machine that others use too.
#pragma once

#include <algorithm>

namespace shoal::test {

// What must take less than `limit` seconds: those of the shortest of three tries, where the first
// do not keep to it. Load delays one or another; what is slow by itself is slow each time.
template <typename Once>
double at_best(double limit, Once&& once) {
  double best = once();
  for (int again = 0; again < 2 && best >= limit; ++again) best = std::min(best, once());
  return best;
}

}  // namespace shoal::test
