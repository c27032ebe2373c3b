// Smoothing and thinning of curves.
#include "shoal/train/report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace shoal::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Series of(const std::vector<double>& y) {
  Series series;
  for (std::size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i));
  series.y = y;
  return series;
}

TEST(Smoothed, StartsAtTheFirstNumberAndForgets) {
  const Series constant = smoothed(of(std::vector<double>(50, 3.5)), 10);
  for (const double y : constant.y) EXPECT_DOUBLE_EQ(y, 3.5);
  std::vector<double> step(200, 1.0);
  std::fill(step.begin(), step.begin() + 50, 9.0);
  const Series smooth = smoothed(of(step), 10);
  EXPECT_DOUBLE_EQ(smooth.y[0], 9);
  EXPECT_GT(smooth.y[52], 4);
  EXPECT_NEAR(smooth.y[199], 1, 1e-9);
  EXPECT_EQ(smoothed(of(step), 1).y, step);  // an average over one point
}

TEST(Smoothed, GapsStayAndCountForNothing) {
  const Series smooth = smoothed(of({2, kNan, std::numeric_limits<double>::infinity(), 2}), 5);
  EXPECT_EQ(smooth.y[0], 2);
  EXPECT_TRUE(std::isnan(smooth.y[1]));
  EXPECT_TRUE(std::isnan(smooth.y[2]));
  EXPECT_DOUBLE_EQ(smooth.y[3], 2);
}

TEST(Thinned, AMillionPointsKeepTheirOutline) {
  std::vector<double> y(1'000'000);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = std::sin(static_cast<double>(i) * 1e-5);
  y[123'456] = 50;  // a spike in one record
  y[765'432] = -40;
  const Series thin = thinned(of(y), 600);
  EXPECT_LE(thin.x.size(), 600U);
  EXPECT_GE(thin.x.size(), 500U);
  EXPECT_EQ(thin.x.front(), 0);
  EXPECT_EQ(thin.x.back(), 999'999);
  EXPECT_EQ(*std::ranges::max_element(thin.y), 50);
  EXPECT_EQ(*std::ranges::min_element(thin.y), -40);
  EXPECT_TRUE(std::ranges::is_sorted(thin.x));
}

TEST(Thinned, ShortSeriesAndGapsStay) {
  EXPECT_EQ(thinned(of({1, 2, 3}), 10).y, (std::vector<double>{1, 2, 3}));
  EXPECT_TRUE(thinned({}, 10).x.empty());
  EXPECT_EQ(thinned(of({7}), 10).y, (std::vector<double>{7}));
  for (std::size_t count = 5; count < 60; ++count)
    EXPECT_LE(thinned(of(std::vector<double>(count, 1)), 5).x.size(), 5U) << count;
  std::vector<double> y(3000, 1);
  std::fill(y.begin() + 1000, y.begin() + 2000, kNan);
  const Series thin = thinned(of(y), 60);
  EXPECT_TRUE(std::ranges::any_of(thin.y, [](double v) { return std::isnan(v); }));
  EXPECT_TRUE(std::ranges::any_of(thin.y, [](double v) { return v == 1; }));
}

TEST(Averaged, KeepsTheMean) {
  std::vector<double> y;
  for (int i = 0; i < 1000; ++i) y.push_back(i % 10);
  const Series few = averaged(of(y), 100);
  ASSERT_EQ(few.x.size(), 100U);
  for (const double mean : few.y) EXPECT_DOUBLE_EQ(mean, 4.5);
  EXPECT_DOUBLE_EQ(few.x[0], 4.5);
  EXPECT_EQ(averaged(of({1, kNan}), 1).y, (std::vector<double>{1}));
  EXPECT_TRUE(std::isnan(averaged(of({kNan, kNan}), 1).y[0]));
  EXPECT_TRUE(averaged({}, 10).x.empty());
}

TEST(Range, PassesOverWhatIsNotFinite) {
  Range range;
  range.take(kNan);
  EXPECT_TRUE(range.empty);
  range.take(std::vector<double>{3, -std::numeric_limits<double>::infinity(), -1});
  EXPECT_FALSE(range.empty);
  EXPECT_EQ(range.low, -1);
  EXPECT_EQ(range.high, 3);
}

}  // namespace
}  // namespace shoal::report
