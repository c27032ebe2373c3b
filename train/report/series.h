// Curves: what is drawn of a column of numbers.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal::report {

struct Series {
  std::vector<double> x, y;  // of equal length; x finite and not falling, y may be NaN (a gap)
};

// An exponential moving average over about `points` of them, without the pull of its start (divided
// by the weights so far, as TensorBoard does). Gaps stay, and count for nothing.
Series smoothed(const Series& series, double points);

// At most `most` (at least 4) points with the same outline: of each of equally many neighbours the
// least and the greatest, the first and the last point of all. A gap stays where a whole stretch
// has no number. Shorter series are returned as they are.
Series thinned(const Series& series, std::size_t most);

// The mean of y in each of at most `most` stretches of equally many points, at the mean x.
Series averaged(const Series& series, std::size_t most);

struct Range {
  double low = 0, high = 0;
  bool empty = true;
  void take(double value);  // what is not finite changes nothing
  void take(std::span<const double> values);
};

}  // namespace shoal::report
