// Curves, and how they are reduced for drawing.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal::report {

struct Series {
  std::vector<double> x, y;  // of equal length; x is finite and does not fall, y may be NaN (a gap)
};

// An exponential moving average over about `points` points, without bias at the start (divided by
// the sum of weights, as in TensorBoard). Gaps stay gaps and do not enter the average.
Series smoothed(const Series& series, double points);

// At most `most` (at least 4) points with the same outline: the first and last point, and the
// minimum and maximum of each group of equally many neighbours. A group without values stays a gap.
// A shorter series is returned unchanged.
Series thinned(const Series& series, std::size_t most);

// Averages of x and y in at most `most` groups of equally many points.
Series averaged(const Series& series, std::size_t most);

struct Range {
  double low = 0, high = 0;
  bool empty = true;
  void take(double value);  // ignores non-finite values
  void take(std::span<const double> values);
};

}  // namespace shoal::report
