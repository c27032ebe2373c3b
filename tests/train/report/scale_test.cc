// Axes and numbers.
#include "shoal/train/report/scale.h"

#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::report {
namespace {

using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Range range_of(double low, double high) { return {.low = low, .high = high, .empty = false}; }

TEST(FormatNumber, ReadsAsPeopleWrite) {
  const std::vector<std::tuple<double, Unit, const char*>> cases = {
      {0, Unit::number, "0"},
      {0.43125, Unit::number, "0.4313"},
      {3.14159, Unit::number, "3.142"},
      {31.4159, Unit::number, "31.42"},
      {999.96, Unit::number, "1000.0"},
      {12345.6, Unit::number, "12,346"},
      {-12345.6, Unit::number, "-12,346"},
      {5e-05, Unit::number, "5e-5"},
      {0.002, Unit::number, "0.002000"},
      {1e30, Unit::number, "1e30"},
      {-0.25, Unit::number, "-0.2500"},
      {124439808, Unit::count, "124,439,808"},
      {0.0032, Unit::seconds, "3.20 ms"},
      {45e-6, Unit::seconds, "45.0 µs"},
      {3e-12, Unit::seconds, "0.00 ns"},
      {0, Unit::seconds, "0.00 s"},
      {90, Unit::seconds, "1.50 min"},
      {7200, Unit::seconds, "2.00 h"},
      {1536, Unit::bytes, "1.50 KiB"},
      {512, Unit::bytes, "512 B"},
      {1567650611, Unit::bytes, "1.46 GiB"},
      {0.875, Unit::share, "87.5 %"},
      {std::nan(""), Unit::number, "not finite"},
      {-kInfinity, Unit::bytes, "not finite"},
  };
  for (const auto& [value, unit, text] : cases) EXPECT_EQ(format_number(value, unit), text);
}

TEST(Axis, TicksAreRoundAndKnowTheirUnit) {
  EXPECT_THAT((Axis{.low = 0, .high = 0.97}.ticks(5).labels),
              ElementsAre("0", "0.2", "0.4", "0.6", "0.8"));
  EXPECT_THAT((Axis{.low = 2010, .high = 11990, .unit = Unit::count}.ticks(5).labels),
              ElementsAre("4,000", "6,000", "8,000", "10,000"));
  const Ticks bytes = Axis{.low = 0, .high = 3.3 * (1 << 30), .unit = Unit::bytes}.ticks(4);
  EXPECT_THAT(bytes.labels, ElementsAre("0", "1", "2", "3"));
  EXPECT_EQ(bytes.unit, "GiB");
  EXPECT_EQ(bytes.at[1], 1 << 30);
  const Ticks times = Axis{.low = 0, .high = 0.0205, .unit = Unit::seconds}.ticks(5);
  EXPECT_THAT(times.labels, ElementsAre("0", "5", "10", "15", "20"));
  EXPECT_EQ(times.unit, "ms");
  EXPECT_EQ((Axis{.low = 0, .high = 1.02, .unit = Unit::share}.ticks(5).unit), "%");
  // Steps have no ticks between them.
  EXPECT_THAT((Axis{.low = 1, .high = 3, .unit = Unit::count}.ticks(8).labels),
              ElementsAre("1", "2", "3"));
  EXPECT_THAT((Axis{.low = 0.5, .high = 2000, .logarithmic = true}.ticks(5).labels),
              ElementsAre("1", "10", "100", "1e3"));
  EXPECT_THAT((Axis{.low = 0.9, .high = 60, .logarithmic = true}.ticks(5).labels),
              ElementsAre("1", "2", "5", "10", "20", "50"));
}

// Any range has at least two ticks, inside it, rising, with as many labels, all different.
TEST(Axis, EveryRangeHasTicks) {
  for (const double low : {-3e12, -7.1, -1e-7, 0.0, 3e-9, 0.0123, 1.0, 4.56e3, 9.99e9, 1e290})
    for (const double span : {1e-6, 3e-3, 0.7, 1.0, 42.0, 8e5, 1e13})
      for (const Unit unit : {Unit::number, Unit::count, Unit::seconds, Unit::bytes, Unit::share}) {
        const double wide = unit == Unit::count ? std::ceil(span) + 1 : span * std::abs(low + 1);
        const Axis axis = make_axis(range_of(low, low + wide), {.unit = unit});
        for (const int wanted : {2, 5, 10}) {
          SCOPED_TRACE(fmt::format("{} to {}, unit {}, {} ticks", axis.low, axis.high,
                                   static_cast<int>(unit), wanted));
          const Ticks ticks = axis.ticks(wanted);
          ASSERT_GE(ticks.at.size(), 2U);
          ASSERT_LE(ticks.at.size(), static_cast<std::size_t>(2 * wanted + 3));
          ASSERT_EQ(ticks.labels.size(), ticks.at.size());
          for (std::size_t i = 0; i < ticks.at.size(); ++i) {
            EXPECT_GE(axis.place(ticks.at[i]), -1e-6);
            EXPECT_LE(axis.place(ticks.at[i]), 1 + 1e-6);
            EXPECT_TRUE(i == 0 || ticks.at[i] > ticks.at[i - 1]);
          }
        }
      }
}

TEST(Axis, TicksOfOneAxisReadDifferently) {
  for (const auto& [low, high] : {std::pair{0.0, 1.0},
                                  {2.31, 2.33},
                                  {1e-5, 5e-5},
                                  {0.0, 3e8},
                                  {100.0, 100.5},
                                  {0.0, 0.00031}}) {
    const Ticks ticks = Axis{.low = low, .high = high}.ticks(5);
    EXPECT_EQ((std::set<std::string>(ticks.labels.begin(), ticks.labels.end()).size()),
              ticks.labels.size())
        << fmt::format("{}", fmt::join(ticks.labels, " "));
  }
}

TEST(MakeAxis, EveryRangeHasAWidth) {
  const std::vector<Range> ranges = {{},
                                     range_of(0, 0),
                                     range_of(3, 3),
                                     range_of(-2, -2),
                                     range_of(1e300, 1e300),
                                     range_of(1, 1 + 1e-15),
                                     range_of(1e-300, 1e-300),
                                     range_of(5, 7)};
  for (const Range& range : ranges)
    for (const bool from_zero : {false, true})
      for (const bool tight : {false, true}) {
        const Axis axis = make_axis(range, {.from_zero = from_zero, .tight = tight});
        EXPECT_LT(axis.low, axis.high);
        EXPECT_TRUE(std::isfinite(axis.low) && std::isfinite(axis.high));
        if (!range.empty) {
          EXPECT_GE(axis.place(range.low), 0);
          EXPECT_LE(axis.place(range.high), 1);
        }
        if (from_zero) {
          EXPECT_LE(axis.low, 0);
          EXPECT_GE(axis.high, 0);
        }
      }
}

TEST(MakeAxis, ALossThatExplodesIsLogarithmic) {
  EXPECT_TRUE(make_axis(range_of(0.3, 1e30), {.may_be_logarithmic = true}).logarithmic);
  EXPECT_FALSE(make_axis(range_of(0.3, 8), {.may_be_logarithmic = true}).logarithmic);
  EXPECT_FALSE(make_axis(range_of(0, 1e30), {.may_be_logarithmic = true}).logarithmic);
  EXPECT_FALSE(make_axis(range_of(0.3, 1e30)).logarithmic);
  const Axis whole = make_axis(range_of(1e-300, 1.7e308), {.may_be_logarithmic = true});
  EXPECT_GE(whole.ticks(5).at.size(), 2U);
  EXPECT_LE(whole.ticks(5).at.size(), 13U);
}

}  // namespace
}  // namespace shoal::report
