#include "support/golden.h"

#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"

namespace shoal::testing {
namespace {

using ::testing::HasSubstr;

template <typename T, std::size_t N>
ConstView view_of(const std::array<T, N>& values) {
  return {values.data(), Shape{static_cast<std::int64_t>(N)}, dtype_of<T>()};
}

TEST(Golden, PathsAreFoundOrNamed) {
  EXPECT_THAT(golden_path("gpt2/tiny/config.json"), HasSubstr("tests/golden/gpt2/tiny"));
  try {
    golden_path("gpt2/absent.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("gpt2/absent.json"));
  }
  EXPECT_FALSE(shared_data("absent.txt").has_value());
}

TEST(Golden, CloseInNormHoldsToTheNormOfTheTensor) {
  const std::array<float, 3> expected{3, 0, 4};
  const std::array<float, 3> actual{3, 0.5f, 4};
  EXPECT_TRUE(close_in_norm("x", view_of(actual), view_of(expected), 0.11));
  const auto result = close_in_norm("x", view_of(actual), view_of(expected), 0.09);
  EXPECT_FALSE(result);
  EXPECT_THAT(result.message(), HasSubstr("worst element 1 of 3"));
}

TEST(Golden, FloorCoversTensorsThatShouldBeZero) {
  const std::array<float, 2> zero{0, 0};
  const std::array<float, 2> rounding{1e-7f, -1e-7f};
  EXPECT_FALSE(close_in_norm("b", view_of(rounding), view_of(zero), 1e-4));
  EXPECT_TRUE(close_in_norm("b", view_of(rounding), view_of(zero), 1e-4, 1e-2));
  EXPECT_TRUE(close_in_norm("b", view_of(zero), view_of(zero), 0));
}

TEST(Golden, DtypesMayDifferShapesAndNansMayNot) {
  const std::array<float, 2> f32{1, -2};
  const std::array<bfloat16, 2> bf16{bfloat16(1), bfloat16(-2)};
  const std::array<double, 2> f64{1, -2};
  const std::array<float, 3> longer{1, -2, 0};
  const std::array<float, 2> nan{1, std::numeric_limits<float>::quiet_NaN()};
  const std::array<float, 2> infinite{1, -std::numeric_limits<float>::infinity()};
  const std::array<std::int32_t, 2> integers{1, -2};
  EXPECT_TRUE(close_in_norm("x", view_of(bf16), view_of(f32), 0));
  EXPECT_TRUE(close_in_norm("x", view_of(f64), view_of(f32), 0));
  EXPECT_FALSE(close_in_norm("x", view_of(longer), view_of(f32), 1));
  EXPECT_FALSE(close_in_norm("x", view_of(nan), view_of(f32), 1e9));
  EXPECT_FALSE(close_in_norm("x", view_of(f32), view_of(nan), 1e9));
  EXPECT_FALSE(close_in_norm("x", view_of(f32), view_of(infinite), 1e9));
  EXPECT_TRUE(close_in_norm("x", view_of(infinite), view_of(infinite), 1));
  const std::array<float, 2> half_right{2, -std::numeric_limits<float>::infinity()};
  EXPECT_FALSE(close_in_norm("x", view_of(half_right), view_of(infinite), 0.5));
  EXPECT_THROW(close_in_norm("x", view_of(integers), view_of(f32), 1), Error);
}

TEST(Golden, CloseRelativeComparesWithTheExpectedValue) {
  EXPECT_TRUE(close_relative("loss", 5.00004, 5, 1e-5));
  EXPECT_FALSE(close_relative("loss", 5.0001, 5, 1e-5));
  EXPECT_FALSE(close_relative("loss", std::nan(""), 5, 1e-5));
}

TEST(Golden, GlobalNormCoversAllTensors) {
  const std::array<float, 1> three{3};
  const std::array<bfloat16, 1> four{bfloat16(4)};
  EXPECT_DOUBLE_EQ(global_norm_of({view_of(three), view_of(four)}), 5);
}

}  // namespace
}  // namespace shoal::testing
