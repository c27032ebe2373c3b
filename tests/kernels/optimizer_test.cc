#include <array>
#include <cmath>
#include <limits>

#include "support.h"

namespace shoal::kernels::testing {
namespace {

SHOAL_ON_EACH_TARGET(Optimizer);

constexpr std::int64_t kCounts[] = {0, 1, 7, 1000, 50001};

using State = Placed<StepState>;

State state_of(std::uint32_t step, std::uint32_t skip = 0) {
  StepState state;
  state.skip = skip;
  state.step = step;
  state.learning_rate = 0.01f;
  state.gradient_scale = 0.5f;
  return State(state);
}

// Master, first moment, second moment, parameter copy, LAMB's sums of squares.
Hosts adam_buffers(std::int64_t count, DType copy) {
  const Shape shape{count};
  return Hosts{Host::random(shape, DType::f32, 1), Host::random(shape, DType::f32, 2, -0.1, 0.1),
               Host::random(shape, DType::f32, 3, 0, 0.1), Host(shape, copy),
               Host(Shape{1, 2}, DType::f64)};
}

AdamWArgs adam_args(Hosts& buffers, const Host& gradient, const State& state, bool copy) {
  AdamWArgs args;
  args.master = buffers[0];
  args.first_moment = buffers[1];
  args.second_moment = buffers[2];
  args.gradient = gradient;
  if (copy) args.parameter = buffers[3];
  args.weight_decay = 0.1;
  args.state = state.get();
  return args;
}

TEST_P(Optimizer, AdamWMatchesTheReference) {
  for (const std::int64_t count : kCounts)
    for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
      const Host gradient = Host::random(Shape{count}, DType::f32, 4);
      verify(
          "adamw", [&] { return adam_buffers(count, copy); },
          [&](Kernels& k, Hosts& out) {
            for (std::uint32_t step = 1; step <= 3; ++step) {
              const State state = state_of(step);
              k.optimizer().adamw(adam_args(out, gradient, state, copy != DType::f32), {});
            }
          },
          {1e-6, 1e-6});
    }
}

TEST_P(Optimizer, LambMatchesTheReference) {
  for (const std::int64_t count : kCounts) {
    const Host gradient = Host::random(Shape{count}, DType::f32, 4);
    for (const double bound : {10.0, 0.01})
      verify(
          "lamb", [&] { return adam_buffers(count, DType::bf16); },
          [&](Kernels& k, Hosts& out) {
            const State state = state_of(3);
            const AdamWArgs adam = adam_args(out, gradient, state, true);
            const LambArgs args{{&adam, 1}, out[4], bound};
            k.optimizer().lamb_moments(args, {});
            k.optimizer().lamb_apply(args, {});
          },
          {4e-6, 4e-6});
  }
}

// Gradients of 0 at some elements, whose moments are 0, too: they only decay.
TEST_P(Optimizer, LionMatchesTheReference) {
  for (const std::int64_t count : kCounts)
    for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
      Host gradient = Host::random(Shape{count}, DType::f32, 4);
      for (std::int64_t i = 0; i < count; i += 3) gradient.set(i, 0);
      verify(
          "lion",
          [&] {
            Hosts buffers = adam_buffers(count, copy);
            for (std::int64_t i = 0; i < count; i += 3) buffers[1].set(i, 0);
            return buffers;
          },
          [&](Kernels& k, Hosts& out) {
            for (std::uint32_t step = 1; step <= 3; ++step) {
              const State state = state_of(step);
              AdamWArgs args = adam_args(out, gradient, state, copy != DType::f32);
              args.second_moment = {};
              k.optimizer().lion_many({&args, 1}, {});
            }
          },
          {1e-6, 1e-6});
    }
}

TEST_P(Optimizer, SgdMatchesTheReference) {
  for (const std::int64_t count : kCounts)
    for (const double momentum : {0.0, 0.9})
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        const Host gradient = Host::random(Shape{count}, DType::f32, 4);
        verify(
            "sgd",
            [&] {
              return Hosts{Host::random(Shape{count}, DType::f32, 1),
                           Host(Shape{count}, DType::f32), Host(Shape{count}, DType::f16)};
            },
            [&](Kernels& k, Hosts& out) {
              for (std::uint32_t step = 1; step <= 3; ++step) {
                const State state = state_of(step);
                SgdArgs args;
                args.master = out[0];
                args.momentum_buffer = out[1];
                args.parameter = out[2];
                args.gradient = gradient;
                args.momentum = momentum;
                args.dampening = nesterov ? 0 : 0.2;
                args.weight_decay = 0.1;
                args.nesterov = nesterov;
                args.state = state.get();
                k.optimizer().sgd(args, {});
              }
            });
      }
}

TEST(OptimizerState, SkippingChangesNothing) {
  const auto kernels = make_test_kernels();
  const Host gradient =
      Host::filled(Shape{50}, DType::f32, std::numeric_limits<double>::infinity());
  Hosts buffers = adam_buffers(50, DType::bf16);
  const Hosts before = adam_buffers(50, DType::bf16);
  const State state = state_of(1, 1);
  kernels->optimizer().adamw(adam_args(buffers, gradient, state, true), {});
  const AdamWArgs adam = adam_args(buffers, gradient, state, true);
  kernels->optimizer().lion_many({&adam, 1}, {});
  const LambArgs lamb{{&adam, 1}, buffers[4]};
  kernels->optimizer().lamb_moments(lamb, {});
  kernels->optimizer().lamb_apply(lamb, {});
  for (std::size_t b = 0; b < 3; ++b)
    for (std::int64_t i = 0; i < 50; ++i) ASSERT_EQ(buffers[b].at(i), before[b].at(i));
  EXPECT_TRUE(std::isnan(buffers[3].at(0)));  // still poisoned
  if (on_cuda()) return;                      // the host cannot read the step there
  const State never = state_of(0);
  EXPECT_EQ(
      error_of([&] { kernels->optimizer().adamw(adam_args(buffers, gradient, never, true), {}); }),
      "adamw: the step is 0; updates count from 1, so advance the StepState first");
}

// Tensors of many sizes in one call, some with a copy, each with its own decay.
TEST_P(Optimizer, AdamWUpdatesManyTensors) {
  const std::int64_t counts[] = {1000, 0, 1, 50001, 7, 8192, 3, 70000, 5};
  const DType copies[] = {DType::bf16, DType::f32, DType::f16};
  std::vector<Host> gradients;
  for (const std::int64_t count : counts)
    gradients.push_back(Host::random(Shape{count}, DType::f32, 4));
  verify(
      "adamw_many",
      [&] {
        Hosts all;
        for (std::size_t i = 0; i < std::size(counts); ++i)
          for (Host& buffer : adam_buffers(counts[i], copies[i % 3])) all.push_back(buffer);
        return all;
      },
      [&](Kernels& k, Hosts& out) {
        for (std::uint32_t step = 1; step <= 2; ++step) {
          const State state = state_of(step);
          std::vector<AdamWArgs> all;
          for (std::size_t i = 0; i < std::size(counts); ++i) {
            AdamWArgs args;
            args.master = out[5 * i];
            args.first_moment = out[5 * i + 1];
            args.second_moment = out[5 * i + 2];
            args.gradient = gradients[i];
            if (i % 3 != 1) args.parameter = out[5 * i + 3];
            args.weight_decay = 0.01 * static_cast<double>(i);
            args.state = state.get();
            all.push_back(args);
          }
          k.optimizer().adamw_many(all, {});
        }
      },
      {1e-6, 1e-6});
}

// Each tensor has its own trust ratio. An empty tensor has sums of 0.
TEST_P(Optimizer, LambUpdatesManyTensors) {
  const std::int64_t counts[] = {1000, 0, 1, 50001, 7, 8192, 3, 70000, 5, 0};
  const DType copies[] = {DType::bf16, DType::f32, DType::f16};
  std::vector<Host> gradients;
  for (const std::int64_t count : counts)
    gradients.push_back(Host::random(Shape{count}, DType::f32, 4));
  verify(
      "lamb of many",
      [&] {
        Hosts all;
        for (std::size_t i = 0; i < std::size(counts); ++i)
          for (Host& buffer : adam_buffers(counts[i], copies[i % 3])) all.push_back(buffer);
        all.emplace_back(Shape{std::ssize(counts), 2}, DType::f64);
        return all;
      },
      [&](Kernels& k, Hosts& out) {
        for (std::uint32_t step = 1; step <= 2; ++step) {
          const State state = state_of(step);
          std::vector<AdamWArgs> all;
          for (std::size_t i = 0; i < std::size(counts); ++i) {
            AdamWArgs args;
            args.master = out[5 * i];
            args.first_moment = out[5 * i + 1];
            args.second_moment = out[5 * i + 2];
            args.gradient = gradients[i];
            if (i % 3 != 1) args.parameter = out[5 * i + 3];
            args.weight_decay = 0.01 * static_cast<double>(i);
            args.state = state.get();
            all.push_back(args);
          }
          const LambArgs lamb{all, out.back()};
          k.optimizer().lamb_moments(lamb, {});
          k.optimizer().lamb_apply(lamb, {});
        }
      },
      {4e-6, 4e-6});
}

TEST_P(Optimizer, SumsSquaresOfManyTensors) {
  std::vector<Host> xs;
  for (const std::int64_t count : {1000, 0, 1, 50001, 7, 100003})
    for (const DType dtype : kTrainingDTypes)
      xs.push_back(Host::random(Shape{count}, dtype, 1, 1, 2));
  for (const std::size_t first : {std::size_t{0}, xs.size() - 1, xs.size()})
    verify(
        "sum_of_squares_many", [&] { return Hosts{Host(Shape{1}, DType::f64)}; },
        [&](Kernels& k, Hosts& out) {
          std::vector<ConstView> views;
          for (std::size_t i = first; i < xs.size(); ++i) views.push_back(xs[i]);
          k.optimizer().sum_of_squares_many(views, out[0], {});
        },
        {1e-13, 0});
}

TEST(OptimizerState, BeginUpdateComputesNormScaleAndSkip) {
  const auto kernels = make_test_kernels();
  struct Case {
    double squares, max_norm, norm;
    float scale;
    bool skip;
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (const Case& c : {Case{64, 0, 4, 0.5f, false}, Case{64, 8, 4, 0.5f, false},
                        Case{64, 1, 4, 0.125f, false}, Case{0, 1, 0, 0.5f, false},
                        Case{inf, 1, inf, 0, true}, Case{std::nan(""), 0, std::nan(""), 0, true}}) {
    StepState initial;
    initial.step = 6;
    initial.skip = 1;  // from the step before
    const Placed<StepState> state(initial);
    const Host squares = Host::filled(Shape{1}, DType::f64, c.squares);
    Host norm(Shape{1}, DType::f64);
    kernels->optimizer().set_step(state.get(), {.learning_rate = 0.25f, .unscale = 0.5f},
                                  kernels->stream());
    BeginUpdateArgs args;
    args.sum_of_squares = squares;
    args.max_norm = c.max_norm;
    args.norm = norm;
    args.state = state.get();
    kernels->optimizer().begin_update(args, {});
    const StepState now = state.value();
    EXPECT_EQ(now.skip, c.skip ? 1u : 0u) << c.squares;
    EXPECT_EQ(now.learning_rate, 0.25f);
    EXPECT_EQ(now.unscale, 0.5f);
    if (c.skip) continue;
    EXPECT_EQ(now.step, 7u);
    EXPECT_NEAR(norm.at(0), c.norm, 1e-12);
    EXPECT_NEAR(now.gradient_scale, c.scale, 1e-6);
  }
}

// The host passes the rates of all updates that the step may be. The state knows which update it
// is.
TEST(OptimizerState, TheRateIsThatOfTheNextUpdate) {
  const auto kernels = make_test_kernels();
  const auto rate_of = [](std::uint32_t update) { return 1 / (3.0f + static_cast<float>(update)); };
  for (const std::uint32_t first : {0u, kRates - 3, 5 * kRates - 1}) {  // as after a resume
    StepState initial;
    initial.step = first;
    const Placed<StepState> state(initial);
    const Placed<std::array<float, kRates>> rates;
    const Host good = Host::filled(Shape{1}, DType::f64, 4),
               bad = Host::filled(Shape{1}, DType::f64, std::numeric_limits<double>::infinity());
    Host norm(Shape{1}, DType::f64);
    std::uint32_t known = 0;
    for (std::uint32_t i = 0; i < 12; ++i) {
      const bool overflows = i % 5 == 2 || i % 5 == 3;
      const std::uint32_t update = first + (i < 8 ? i : known + i - 8);  // read once, before step 8
      kernels->optimizer().set_step(state.get(),
                                    {.learning_rate = rate_of(update),
                                     .unscale = 0.5f,
                                     .inverse_targets = 0.125f,
                                     .rates = rates.get()->data(),
                                     .update = update},
                                    kernels->stream());
      const StepState now = state.value();
      EXPECT_EQ(now.step, first + known);
      EXPECT_EQ(now.learning_rate, rate_of(now.step)) << i;
      EXPECT_EQ(now.inverse_targets, 0.125f);
      BeginUpdateArgs args;
      args.sum_of_squares = overflows ? bad : good;
      args.norm = norm;
      args.state = state.get();
      kernels->optimizer().begin_update(args, {});
      if (!overflows) ++known;
    }
    EXPECT_EQ(state.value().step, first + known);
    EXPECT_EQ(known, 8u);
  }
}

// Like the growth tracker of torch.amp.GradScaler, one update after another.
TEST(OptimizerState, TheLossScaleFollowsTheUpdates) {
  const auto kernels = make_test_kernels();
  const Host good = Host::filled(Shape{1}, DType::f64, 64.0 * 64),
             bad = Host::filled(Shape{1}, DType::f64, std::numeric_limits<double>::infinity());
  StepState initial;
  initial.loss_scale = 16;
  const Placed<StepState> state(initial);
  BeginUpdateArgs args;
  args.state = state.get();
  args.scaling = {.dynamic = true, .growth = 4, .backoff = 0.5f, .min_scale = 2, .window = 2};
  const auto update = [&](bool overflows) {
    Host norm(Shape{1}, DType::f64);
    args.sum_of_squares = overflows ? bad : good;
    args.norm = norm;
    args.state = state.get();
    kernels->optimizer().begin_update(args, {});
    if (!overflows) {
      EXPECT_TRUE(std::isfinite(norm.at(0)));
    }
    return state.value();
  };
  kernels->optimizer().set_step(state.get(), {.learning_rate = 0.25f, .unscale = 0.5f},
                                kernels->stream());
  // The factor for gradients undoes the scale that this step's loss had.
  StepState now = update(false);
  EXPECT_EQ(now.gradient_scale, 0.5f / 16);
  EXPECT_EQ(now.loss_scale, 16);
  now = update(false);
  EXPECT_EQ(now.gradient_scale, 0.5f / 16);
  EXPECT_EQ(now.loss_scale, 64) << "after a window of two";
  EXPECT_EQ(update(false).gradient_scale, 0.5f / 64);
  now = update(true);
  EXPECT_EQ(now.skip, 1u);
  EXPECT_EQ(now.loss_scale, 32);
  EXPECT_EQ(now.good_steps, 0u);
  EXPECT_EQ(now.step, 3u) << "a skipped step does not count";
  EXPECT_EQ(update(false).loss_scale, 32) << "the window restarts";
  for (const float scale : {16.0f, 8.0f, 4.0f, 2.0f, 2.0f})
    EXPECT_EQ(update(true).loss_scale, scale);
  EXPECT_EQ(state.value().overflows_at_minimum, 1u);
  args.scaling.dynamic = false;
  EXPECT_EQ(update(true).loss_scale, 2);
  EXPECT_EQ(update(false).gradient_scale, 0.25f) << "an unchanged scale is undone too";
}

// The scale does not grow if it would become infinite. The first overflows in a row are tolerated.
TEST(OptimizerState, TheLossScaleToleratesOverflowsAndStaysFinite) {
  const auto kernels = make_test_kernels();
  const Host good = Host::filled(Shape{1}, DType::f64, 64.0 * 64),
             bad = Host::filled(Shape{1}, DType::f64, std::numeric_limits<double>::infinity());
  Host norm(Shape{1}, DType::f64);
  StepState initial;
  initial.loss_scale = 0x1p127f;
  initial.shift_left = 2;
  const Placed<StepState> state(initial);
  BeginUpdateArgs args;
  args.scaling = {.dynamic = true, .window = 1, .delayed_shift = 2};
  kernels->optimizer().set_step(state.get(), {.learning_rate = 1, .unscale = 1}, kernels->stream());
  const auto update = [&](bool overflows) {
    args.sum_of_squares = overflows ? bad : good;
    args.norm = norm;
    args.state = state.get();
    kernels->optimizer().begin_update(args, {});
    return state.value();
  };
  EXPECT_EQ(update(false).loss_scale, 0x1p127f);
  EXPECT_EQ(update(true).loss_scale, 0x1p127f) << "the overflow is tolerated";
  EXPECT_EQ(update(true).loss_scale, 0x1p126f);
  const StepState grown = update(false);
  EXPECT_EQ(grown.loss_scale, 0x1p127f);
  EXPECT_EQ(grown.shift_left, 2u);
  args.scaling.min_scale = 0x1p127f;
  EXPECT_EQ(update(true).overflows_at_minimum, 1u);
  EXPECT_EQ(update(true).overflows_at_minimum, 2u);
  EXPECT_EQ(update(false).overflows_at_minimum, 0u) << "only consecutive overflows count";
}

TEST_P(Optimizer, SumsSquares) {
  for (const DType dtype : kTrainingDTypes)
    for (const std::int64_t count : {0, 1, 7, 8192, 100003})
      for (const bool accumulate : {false, true}) {
        const Host x = Host::random(Shape{count}, dtype, 1, 1, 2);
        verify(
            "sum_of_squares",
            [&] {
              return Hosts{accumulate ? Host::filled(Shape{1}, DType::f64, 3)
                                      : Host(Shape{1}, DType::f64)};
            },
            [&](Kernels& k, Hosts& out) {
              k.optimizer().sum_of_squares(x, out[0], accumulate, {});
            },
            {1e-13, 0});
      }
  // These squares exceed the range of f32.
  const auto kernels = make_test_kernels();
  const Host big = Host::filled(Shape{4}, DType::f32, 1e30);
  Host out(Shape{1}, DType::f64);
  kernels->optimizer().sum_of_squares(big, out, false, {});
  EXPECT_NEAR(out.at(0) / 4e60, 1, 1e-6);
}

TEST_P(Optimizer, FindsTheOneNonFiniteElement) {
  const auto kernels = make_test_kernels();
  for (const DType dtype : kTrainingDTypes)
    for (const std::int64_t count : {1, 31, 40000}) {
      Host x = Host::random(Shape{count}, dtype, 1, -6e4, 6e4);
      EXPECT_FALSE(kernels->optimizer().has_non_finite(x, {}));
      for (const std::int64_t place : {std::int64_t{0}, count / 2, count - 1})
        for (const double value : {-std::numeric_limits<double>::infinity(), std::nan("")}) {
          const double before = x.at(place);
          x.set(place, value);
          EXPECT_TRUE(kernels->optimizer().has_non_finite(x, {})) << place << " of " << count;
          x.set(place, before);
        }
    }
  EXPECT_FALSE(kernels->optimizer().has_non_finite(Host(Shape{0}, DType::f32), {}));
}

}  // namespace
}  // namespace shoal::kernels::testing
