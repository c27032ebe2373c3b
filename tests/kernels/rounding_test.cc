// bf16 parameters without masters: how they are rounded, and that the rounding depends only on an
// element's position in the whole parameter.
#include "shoal/kernels/rounding.h"

#include <bit>
#include <cmath>
#include <limits>

#include "support.h"
#include <hwy/targets.h>

namespace shoal::kernels::testing {
namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
float rounded(float x, std::uint32_t upper) {
  return std::bit_cast<float>(rounded_stochastically(bits_of(x), upper << 16 | 0x1234));
}

// The share of the 65536 draws that rounds x away from zero is x's relative position between its
// two neighbours.
TEST(StochasticRounding, TheMeanOverAllDrawsIsTheNumber) {
  for (const float x : {1.0f + 0x1p-20f, 1.0f + 0x1.8p-8f, -3.14159265f, 6.1e-5f, 0x1.fffffep100f,
                        1e-40f, -0x1p-149f, 0x1.fffffep-1f}) {
    const float toward = std::bit_cast<float>(bits_of(x) & 0xffff0000u);
    const float away = std::bit_cast<float>((bits_of(x) & 0xffff0000u) + 0x10000u);
    int far = 0;
    for (std::uint32_t draw = 0; draw < 65536; ++draw) {
      const float got = rounded(x, draw);
      ASSERT_TRUE(got == toward || got == away) << x << " became " << got;
      if (got == away) ++far;
    }
    const double share = (static_cast<double>(x) - toward) / (static_cast<double>(away) - toward);
    EXPECT_EQ(far, share * 65536) << x;
  }
}

TEST(StochasticRounding, Bf16ValuesStayAndNoneBecomesInfinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = static_cast<float>(bfloat16(0x1.fep127f));
  for (const std::uint32_t draw : {0u, 1u, 0x8000u, 0xffffu}) {
    for (const float x :
         {0.0f, -0.0f, 1.0f, -0x1.02p-3f, 0x1p-133f, largest, -largest, infinity, -infinity})
      EXPECT_EQ(bits_of(rounded(x, draw)), bits_of(x)) << x;
    for (const float x : {std::numeric_limits<float>::max(), std::nextafter(largest, infinity)}) {
      EXPECT_EQ(rounded(x, draw), largest);
      EXPECT_EQ(rounded(-x, draw), -largest);
    }
    for (const std::uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
      const std::uint32_t got = rounded_stochastically(nan, draw << 16);
      EXPECT_TRUE(std::isnan(std::bit_cast<float>(got))) << nan;
      EXPECT_EQ(got & 0xffffu, 0u);
    }
  }
}

class RoundedUpdate : public OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, RoundedUpdate, ::testing::ValuesIn(runnable_targets()),
                         target_name);

// Parameter, first moment, second moment, gradient, LAMB's sums.
struct Case {
  explicit Case(std::int64_t count)
      : buffers{Host::random(Shape{count}, DType::bf16, 1),
                Host::random(Shape{count}, DType::f32, 2, -0.1, 0.1),
                Host::random(Shape{count}, DType::f32, 3, 0, 0.1),
                Host::random(Shape{count}, DType::f32, 4),
                Host::filled(Shape{1, 2}, DType::f64, 3)},
        state([] {
          StepState now;
          now.step = 3;
          now.learning_rate = 0.01f;
          now.gradient_scale = 0.5f;
          return now;
        }()) {}
  AdamWArgs args(const RoundingPlace& place) {
    AdamWArgs args;
    args.master = buffers[0];
    args.first_moment = buffers[1];
    args.second_moment = buffers[2];
    args.gradient = buffers[3];
    args.rounding = place;
    args.weight_decay = 0.1;
    args.state = state.get();
    return args;
  }
  LambArgs lamb(std::span<const AdamWArgs> tensors) { return {tensors, buffers[4], 10}; }
  Hosts buffers;
  Placed<StepState> state;
};

constexpr RoundingPlace kPlace{{.first = 3}, 77, 5};

TEST_P(RoundedUpdate, FollowsTheReference) {
  for (const std::int64_t count : {0, 1, 7, 1000, 50001}) {
    verify(
        "adamw", [&] { return Case(count).buffers; },
        [&](Kernels& k, Hosts& out) {
          Case now(0);
          now.buffers = out;
          k.optimizer().adamw(now.args(kPlace), {});
          out = now.buffers;
        },
        {1e-6, 1e-6});
    verify(
        "lion", [&] { return Case(count).buffers; },
        [&](Kernels& k, Hosts& out) {
          Case now(0);
          now.buffers = out;
          const AdamWArgs args = now.args(kPlace);
          k.optimizer().lion_many({&args, 1}, {});
          out = now.buffers;
        },
        {1e-6, 1e-6});
    verify(
        "lamb", [&] { return Case(count).buffers; },
        [&](Kernels& k, Hosts& out) {
          Case now(0);
          now.buffers = out;
          const AdamWArgs adam = now.args(kPlace);
          k.optimizer().lamb_moments(now.lamb({&adam, 1}), {});
          k.optimizer().lamb_apply(now.lamb({&adam, 1}), {});
          out = now.buffers;
        },
        {4e-6, 4e-6});
  }
}

// The arithmetic of kernels/cpu and kernels/cuda for a single element.
struct Plain {
  float decay, step_size, correction2, inverse1, inverse2;
  Plain() {
    const double rate = 0.01f, c1 = 1 - std::pow(0.9, 3.0), c2 = 1 - std::pow(0.999, 3.0);
    decay = static_cast<float>(1 - rate * 0.1);
    step_size = static_cast<float>(rate / c1);
    correction2 = static_cast<float>(std::sqrt(c2));
    inverse1 = static_cast<float>(1 / c1);
    inverse2 = static_cast<float>(1 / c2);
  }
  void advance(float gradient, float& m, float& v) const {
    const float g = gradient * 0.5f;
    m = std::fma(static_cast<float>(1 - 0.9), g - m, m);
    v = std::fma(static_cast<float>(1 - 0.999) * g, g, v * 0.999f);
  }
  float adamw(float p, float m, float v) const {
    const float denominator = std::sqrt(v) / correction2 + 1e-8f;
    return std::fma(-step_size, m / denominator, p * decay);
  }
  float lamb(float p, float m, float v, float rate) const {
    const float denominator = std::sqrt(v * inverse2) + 1e-8f;
    const float r = std::fma(0.1f, p, m * inverse1 / denominator);
    return std::fma(-rate, r, p);
  }
};

// Every device must give the same bits. (Targets without fused multiply-add round more often.)
TEST_P(RoundedUpdate, HasTheBitsOfThePlainArithmetic) {
  if (!on_cuda() && GetParam() > HWY_AVX2) GTEST_SKIP() << "no fused multiply-add";
  const auto kernels = make_test_kernels();
  const Plain plain;
  for (const bool lamb : {false, true}) {
    Case now(5003);
    const Case before(5003);
    const AdamWArgs args = now.args(kPlace);
    // Sums that are equal on every device. The quotient of their roots is 0.5.
    now.buffers[4].set(0, 1);
    now.buffers[4].set(1, 4);
    if (lamb)
      kernels->optimizer().lamb_apply(now.lamb({&args, 1}), {});
    else
      kernels->optimizer().adamw(args, {});
    int unequal = 0;
    for (std::int64_t i = 0; i < 5003; ++i) {
      const auto at = [&](std::size_t buffer) {
        return static_cast<float>(before.buffers[buffer].at(i));
      };
      float m = at(1), v = at(2), want = at(0);
      if (lamb) {
        want = plain.lamb(want, m, v, static_cast<float>(0.5 * 0.01f));
      } else {
        plain.advance(at(3), m, v);
        want = plain.adamw(want, m, v);
      }
      const RandomSite site{
          .seed = kPlace.seed ^ 0x5bf03635f0a31e2dull, .state = nullptr, .site = 5};
      const std::uint64_t element = static_cast<std::uint64_t>(i) + 3;
      const auto random =
          philox(site.seed, {static_cast<std::uint32_t>(element / 4), 0, 5, 3})[element % 4];
      const auto rounded = std::bit_cast<float>(rounded_stochastically(bits_of(want), random));
      if (static_cast<double>(rounded) != now.buffers[0].at(i)) ++unequal;
    }
    EXPECT_EQ(unequal, 0) << (lamb ? "LAMB" : "AdamW");
  }
}

// A shard, and tensor-parallel parts: columns, and columns of a fused projection of three.
TEST_P(RoundedUpdate, DoesNotDependOnHowTheParameterIsSplit) {
  const auto kernels = make_test_kernels();
  constexpr std::int64_t kRows = 40, kColumns = 66;
  Case whole(kRows * kColumns);
  kernels->optimizer().adamw(whole.args({{}, 7, 9}), {});
  const auto check = [&](const RoundingPlace& place, std::int64_t count, const char* what) {
    Case part(count);
    const Case before(kRows * kColumns);
    for (std::size_t b = 0; b < 4; ++b)
      for (std::int64_t i = 0; i < count; ++i)
        part.buffers[b].set(i, before.buffers[b].at(static_cast<std::int64_t>(place.element(i))));
    kernels->optimizer().adamw(part.args(place), {});
    int unequal = 0;
    for (std::int64_t i = 0; i < count; ++i)
      if (part.buffers[0].at(i) != whole.buffers[0].at(static_cast<std::int64_t>(place.element(i))))
        ++unequal;
    EXPECT_EQ(unequal, 0) << what;
  };
  const RoundingPlace at{{}, 7, 9};
  RoundingPlace shard = at;
  shard.first = 1001;
  check(shard, 1203, "a shard");
  RoundingPlace columns = at;
  columns.base = 30;
  columns.row = columns.run = 17;
  columns.row_step = kColumns;
  check(columns, kRows * 17, "columns");
  columns.first = 100;
  check(columns, 301, "a shard of columns");
  RoundingPlace three = at;  // columns 11 to 22 of each third
  three.base = 11;
  three.run = 11;
  three.run_step = 22;
  three.row = 33;
  three.row_step = kColumns;
  check(three, kRows * 33, "a part of three");
  EXPECT_EQ(three.element(12), 34u);
  EXPECT_EQ(three.element(33), 77u);
}

// The mean over 16 seeds with 4096 elements each. Six standard errors of half a unit are 0.012.
TEST_P(RoundedUpdate, MovesByTheExactUpdateOnAverage) {
  const auto kernels = make_test_kernels();
  constexpr std::int64_t kCount = 4096;
  double mean = 0;
  constexpr double kUnit = 0x1p-7;  // the spacing of bf16 in [1, 2)
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    Case now(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      now.buffers[0].set(i, 1.5);
      for (const std::size_t b : {1u, 2u, 3u}) now.buffers[b].set(i, 0);
    }
    AdamWArgs args = now.args({{}, seed, 0});
    args.weight_decay = 0.05;  // 1.5 * 0.01 * 0.05 is a tenth of a unit
    kernels->optimizer().adamw(args, {});
    for (std::int64_t i = 0; i < kCount; ++i) {
      const double p = now.buffers[0].at(i);
      ASSERT_TRUE(p == 1.5 || p == 1.5 - kUnit) << p;
      mean += p / (16 * kCount);
    }
  }
  EXPECT_NEAR(mean, 1.5 - 1.5 * 0.01 * 0.05, 0.012 * kUnit);
}

TEST(RoundedUpdates, AreRefusedForParametersWithMasters) {
  const auto kernels = make_test_kernels();
  Case now(5);
  Host wide(Shape{5}, DType::f32);
  AdamWArgs args = now.args(kPlace);
  args.master = wide;
  EXPECT_EQ(error_of([&] { kernels->optimizer().adamw(args, {}); }),
            "adamw: stochastic rounding is of bf16 parameters without masters, not of f32");
  args = now.args(kPlace);
  Host copy(Shape{5}, DType::bf16);
  args.parameter = copy;
  EXPECT_EQ(error_of([&] { kernels->optimizer().adamw(args, {}); }),
            "adamw: stochastic rounding is of bf16 parameters without masters, not of bf16 masters "
            "with a copy");
  args = now.args(kPlace);
  args.rounding = {};
  EXPECT_EQ(error_of([&] { kernels->optimizer().adamw(args, {}); }),
            "adamw: master is bf16, expected f32");
}

}  // namespace
}  // namespace shoal::kernels::testing
