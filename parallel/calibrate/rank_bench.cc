#include "shoal/parallel/calibrate/rank_bench.h"

#include <algorithm>
#include <vector>

#include "shoal/runtime/base/clock.h"

namespace shoal::parallel {

double RankBench::slowest(double seconds) {
  ranks_.all_reduce(&seconds, &seconds, 1, DType::f64, collectives::ReduceOp::max)->wait();
  return seconds;
}

double RankBench::time(const std::function<void()>& body) {
  const auto once = [&] {
    ranks_.barrier()->wait();
    const auto start = Clock::now();
    body();
    return seconds_since(start);
  };
  constexpr double kWhole = 0.05;  // of one measurement, where a body is short
  const double first = slowest(once());
  const int runs = static_cast<int>(std::clamp(kWhole / std::max(first, 1e-6), 3.0, 15.0));
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) seconds.push_back(once());
  std::ranges::nth_element(seconds, seconds.begin() + runs / 2);
  return slowest(seconds[static_cast<std::size_t>(runs / 2)]);
}

}  // namespace shoal::parallel
