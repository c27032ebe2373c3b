#include "shoal/train/metrics/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void check_sizes(std::size_t predictions, std::size_t labels) {
  if (predictions != labels)
    throw_error(ErrorCode::invalid_argument, "{} predictions for {} labels", predictions, labels);
}

std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double shared = static_cast<double>(begin + end - 1) / 2;
    for (; begin < end; ++begin) ranks[order[begin]] = shared;
  }
  return ranks;
}

}  // namespace

double accuracy(Classes predictions, Classes labels) {
  check_sizes(predictions.size(), labels.size());
  if (labels.empty()) return kNan;
  std::size_t right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += predictions[i] == labels[i];
  return static_cast<double>(right) / static_cast<double>(labels.size());
}

double f1_score(Classes predictions, Classes labels) {
  check_sizes(predictions.size(), labels.size());
  if (labels.empty()) return kNan;
  std::int64_t both = 0, either = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    both += predictions[i] == 1 && labels[i] == 1;
    either += (predictions[i] == 1) + (labels[i] == 1);
  }
  return either == 0 ? 0 : 2 * static_cast<double>(both) / static_cast<double>(either);
}

double matthews_correlation(Classes predictions, Classes labels) {
  check_sizes(predictions.size(), labels.size());
  if (labels.empty()) return kNan;
  struct Count {
    double predicted = 0, is = 0;
  };
  std::map<std::int64_t, Count> classes;
  double right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    ++classes[predictions[i]].predicted;
    ++classes[labels[i]].is;
    right += predictions[i] == labels[i];
  }
  const auto all = static_cast<double>(labels.size());
  double cross = right * all, predicted = all * all, is = all * all;
  for (const auto& [name, count] : classes) {
    cross -= count.predicted * count.is;
    predicted -= count.predicted * count.predicted;
    is -= count.is * count.is;
  }
  return predicted * is == 0 ? 0 : cross / std::sqrt(predicted * is);
}

double pearson_correlation(std::span<const double> a, std::span<const double> b) {
  check_sizes(a.size(), b.size());
  if (a.size() < 2) return kNan;
  const auto mean = [](std::span<const double> x) {
    return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  };
  const double mean_a = mean(a), mean_b = mean(b);
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  if (aa == 0 || bb == 0) return kNan;
  return std::clamp(ab / std::sqrt(aa) / std::sqrt(bb), -1.0, 1.0);
}

double spearman_correlation(std::span<const double> a, std::span<const double> b) {
  check_sizes(a.size(), b.size());
  return pearson_correlation(ranks_of(a), ranks_of(b));
}

}  // namespace shoal
