#include "shoal/train/report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shoal::report {
namespace {

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

// Calls work(begin, end) for `parts` ranges of nearly equal length.
template <typename Work>
void for_stretches(std::size_t begin, std::size_t end, std::size_t parts, Work&& work) {
  const std::size_t count = end - begin;
  for (std::size_t part = 0; part < parts; ++part)
    if (const std::size_t from = begin + count * part / parts,
        to = begin + count * (part + 1) / parts;
        from < to)
      work(from, to);
}

}  // namespace

Series smoothed(const Series& series, double points) {
  Series smooth = series;
  const double keep = 1 - 2 / (std::max(points, 1.0) + 1);
  double sum = 0, weight = 0;
  for (double& y : smooth.y) {
    if (!std::isfinite(y)) {
      y = kGap;
      continue;
    }
    sum = keep * sum + (1 - keep) * y;
    weight = keep * weight + (1 - keep);
    y = sum / weight;
  }
  return smooth;
}

Series thinned(const Series& series, std::size_t most) {
  const std::size_t count = series.x.size();
  most = std::max<std::size_t>(most, 4);
  if (count <= most) return series;
  Series less;
  const auto put = [&](std::size_t i) {
    less.x.push_back(series.x[i]);
    less.y.push_back(series.y[i]);
  };
  put(0);
  for_stretches(1, count - 1, (most - 2) / 2, [&](std::size_t from, std::size_t to) {
    std::size_t least = to, greatest = to;
    for (std::size_t i = from; i < to; ++i) {
      if (!std::isfinite(series.y[i])) continue;
      if (least == to || series.y[i] < series.y[least]) least = i;
      if (greatest == to || series.y[i] > series.y[greatest]) greatest = i;
    }
    if (least == to) return put(from);  // a gap
    put(std::min(least, greatest));
    if (least != greatest) put(std::max(least, greatest));
  });
  put(count - 1);
  return less;
}

Series averaged(const Series& series, std::size_t most) {
  Series less;
  const std::size_t count = series.x.size();
  for_stretches(0, count, std::min(count, std::max<std::size_t>(most, 1)),
                [&](std::size_t from, std::size_t to) {
                  double x = 0, y = 0, finite = 0;
                  for (std::size_t i = from; i < to; ++i) {
                    x += series.x[i];
                    if (!std::isfinite(series.y[i])) continue;
                    y += series.y[i];
                    ++finite;
                  }
                  less.x.push_back(x / static_cast<double>(to - from));
                  less.y.push_back(finite > 0 ? y / finite : kGap);
                });
  return less;
}

void Range::take(double value) {
  if (!std::isfinite(value)) return;
  low = empty ? value : std::min(low, value);
  high = empty ? value : std::max(high, value);
  empty = false;
}

void Range::take(std::span<const double> values) {
  for (const double value : values) take(value);
}

}  // namespace shoal::report
