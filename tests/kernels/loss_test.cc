#include "shoal/kernels/loss.h"

#include "array.h"
#include <gmock/gmock.h>

#include "shoal/kernels/cpu/families.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

using testing::Array;
using testing::At;
using testing::close;
using testing::epsilon;
using testing::has_little_time;
using testing::make_test_kernels;
using testing::on_cuda;
using testing::Placed;

struct Setting {
  std::int64_t rows = 10, columns = 16, vocabulary = 50;
  DType dtype = DType::f32;
  bool bias = false, accumulate = false, backward = true;
  float smoothing = 0, loss_scale = 1;
  float state_scale = 0, inverse_targets = 1;  // for a StepState; 0: without one
  int ignored_every = 0;                       // every n-th row has target -100; 1: all rows
  float soft_cap = 0;
};

struct Result {
  Array loss_sum, token_loss, correct, dx, dweight, dbias;
};

class LossTest : public ::testing::Test {
 protected:
  static Result run(LossKernels& kernels, Device device, const Setting& s) {
    const At at(device);
    const Array x = Array::random({s.rows, s.columns}, s.dtype, 1),
                weight = Array::random({s.vocabulary, s.columns}, s.dtype, 2, 0.3f),
                bias = s.bias ? Array::random({s.vocabulary}, s.dtype, 3) : Array();
    Array targets = Array::integers({s.rows}, 0, static_cast<std::int32_t>(s.vocabulary) - 1, 4);
    for (std::int64_t i = 0; s.ignored_every > 0 && i < s.rows; i += s.ignored_every)
      targets.set(i, -100);
    const auto gradient = [&](Shape shape, unsigned seed) {
      return s.accumulate ? Array::random(shape, DType::f32, seed) : Array(shape, DType::f32);
    };
    Result r{Array({1}, DType::f32),
             Array({s.rows}, DType::f32),
             Array({1}, DType::i32),
             s.backward ? Array({s.rows, s.columns}, s.dtype) : Array(),
             s.backward ? gradient({s.vocabulary, s.columns}, 5) : Array(),
             s.backward && s.bias ? gradient({s.vocabulary}, 6) : Array()};
    LinearCrossEntropyArgs args;
    args.x = x;
    args.weight = weight;
    args.bias = bias;
    args.targets = targets;
    args.soft_cap = s.soft_cap;
    args.label_smoothing = s.smoothing;
    args.loss_scale = s.loss_scale;
    StepState state;
    state.loss_scale = s.state_scale;
    state.inverse_targets = s.inverse_targets;
    const Placed<StepState> placed(state);
    if (s.state_scale != 0) args.state = placed.get();
    args.loss_sum = r.loss_sum;
    args.token_loss = r.token_loss;
    args.correct = r.correct;
    args.dx = r.dx;
    args.dweight = r.dweight;
    args.dbias = r.dbias;
    args.accumulate_dweight = s.accumulate;
    kernels.linear_cross_entropy(args, {});
    return r;
  }

  void check(const Setting& s) {
    SCOPED_TRACE(::testing::Message()
                 << s.rows << " rows, " << s.columns << " columns, vocabulary " << s.vocabulary
                 << " " << to_string(s.dtype) << (s.bias ? " bias" : "") << " cap " << s.soft_cap
                 << " smoothing " << s.smoothing << " ignored " << s.ignored_every);
    LossKernels& tested = loss_ ? *loss_ : ours_->loss();
    const Result ours = run(tested, ours_->device(), s), again = run(tested, ours_->device(), s);
    compare(ours, again, run(reference_->loss(), Device::cpu(), s), s);
  }

  static void compare(const Result& ours, const Result& again, const Result& expected,
                      const Setting& s) {
    const double rows = static_cast<double>(s.rows), scale = static_cast<double>(s.loss_scale);
    // The CPU keeps logits in f32, and a GPU rounds them to the inputs' dtype. Logits are within 8.
    const double logits = on_cuda() && s.dtype != DType::f32 ? 4 * epsilon(s.dtype) : 0;
    // Gradients of logits are rounded to the inputs' dtype. Gradients of x are sums over the
    // vocabulary.
    const double tolerance =
        3 * epsilon(s.dtype) + logits + 1e-6 + 1e-10 * static_cast<double>(s.vocabulary);
    EXPECT_TRUE(close(ours.loss_sum, expected.loss_sum, 2e-6 + logits, rows));
    EXPECT_TRUE(close(ours.token_loss, expected.token_loss, 1e-5 + logits));
    // Rounding may make the two largest logits equal.
    EXPECT_NEAR(ours.correct.at(0), expected.correct.at(0), logits > 0 ? 1 + rows / 16 : 0);
    EXPECT_TRUE(again.loss_sum.same_bytes(ours.loss_sum));
    if (!s.backward) return;
    EXPECT_TRUE(close(ours.dx, expected.dx, tolerance, scale));
    EXPECT_TRUE(close(ours.dweight, expected.dweight, tolerance, scale * 2));
    EXPECT_TRUE(again.dx.same_bytes(ours.dx) && again.dweight.same_bytes(ours.dweight));
    if (s.bias) {
      EXPECT_TRUE(close(ours.dbias, expected.dbias, tolerance, scale * 2));
    }
  }

  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
  std::unique_ptr<Kernels> ours_ = make_test_kernels();
  std::unique_ptr<Kernels> reference_ = make_reference_kernels();
  std::unique_ptr<LossKernels> loss_;  // replaces the one of ours_
};

TEST_F(LossTest, LinearCrossEntropyAgreesWithTheReference) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (std::int64_t rows : {0, 1, 31, 33})
      for (std::int64_t vocabulary : {1, 17, 63, 64, 130}) {
        check({.rows = rows, .vocabulary = vocabulary, .dtype = dtype});
        check({.rows = rows,
               .columns = 31,
               .vocabulary = vocabulary,
               .dtype = dtype,
               .bias = true,
               .accumulate = true,
               .smoothing = 0.1f,
               .loss_scale = 8});
        check({.rows = rows, .vocabulary = vocabulary, .dtype = dtype, .backward = false});
        check({.rows = rows, .vocabulary = vocabulary, .dtype = dtype, .ignored_every = 3});
        check({.rows = rows, .vocabulary = vocabulary, .dtype = dtype, .ignored_every = 1});
      }
}

// Caps below the logits and above them. The gradients are those of the logits before the cap.
TEST_F(LossTest, SoftCapsBoundTheLogits) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const float cap : {0.5f, 3.0f, 200.0f})
      for (std::int64_t vocabulary : {1, 17, 64, 130}) {
        check({.rows = 31, .vocabulary = vocabulary, .dtype = dtype, .soft_cap = cap});
        check({.rows = 33,
               .columns = 31,
               .vocabulary = vocabulary,
               .dtype = dtype,
               .bias = true,
               .accumulate = true,
               .smoothing = 0.1f,
               .loss_scale = 8,
               .ignored_every = 3,
               .soft_cap = cap});
        check({.vocabulary = vocabulary, .dtype = dtype, .backward = false, .soft_cap = cap});
      }
  LinearCrossEntropyArgs args;
  const Array x({3, 4}, DType::f32), weight({5, 4}, DType::f32), loss({1}, DType::f32),
      targets = Array::integers({3}, 0, 4, 1);
  args.x = x, args.weight = weight, args.targets = targets, args.loss_sum = loss;
  args.soft_cap = -1;
  for (Kernels* kernels : {ours_.get(), reference_.get()})
    EXPECT_THROW(kernels->loss().linear_cross_entropy(args, {}), Error);
}

// With equal logits the first counts as the largest. They are so far below 0 that padding an odd
// vocabulary with logits of 0 would make the result infinite.
TEST_F(LossTest, EqualLogitsFarBelowZeroStayFinite) {
  constexpr std::int64_t kRows = 3, kColumns = 16, kVocabulary = 17;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Array x({kRows, kColumns}, dtype), weight({kVocabulary, kColumns}, dtype),
        targets({kRows}, DType::i32);
    for (std::int64_t i = 0; i < x.count(); ++i) x.set(i, 1);
    for (std::int64_t i = 0; i < weight.count(); ++i) weight.set(i, -10);
    for (const auto& [row, target] : {std::pair{0, 5}, {1, 0}, {2, 16}}) targets.set(row, target);
    const At at(ours_->device());
    const Array loss({1}, DType::f32), correct({1}, DType::i32), dx({kRows, kColumns}, dtype),
        dweight({kVocabulary, kColumns}, DType::f32);
    LinearCrossEntropyArgs args;
    args.x = x;
    args.weight = weight;
    args.targets = targets;
    args.loss_sum = loss;
    args.correct = correct;
    args.dx = dx;
    args.dweight = dweight;
    ours_->loss().linear_cross_entropy(args, {});
    EXPECT_NEAR(loss.at(0), 3 * std::log(17.0), 1e-4);
    EXPECT_EQ(correct.at(0), 1);
    for (std::int64_t i = 0; i < dx.count(); ++i) ASSERT_NEAR(dx.at(i), 0, 0.2) << i;
    for (std::int64_t i = 0; i < dweight.count(); ++i)
      ASSERT_NEAR(dweight.at(i), 3.0 / 17 - (i / kColumns % 16 == 0 || i / kColumns == 5 ? 1 : 0),
                  0.01)
          << i;
  }
}

// A vocabulary divided at uneven positions, with some empty shards. The ranks' parts must match the
// cross-entropy of the whole.
struct Sharded {
  std::vector<Array> statistics, gradients;
  Array token_loss;
};

Sharded run_sharded(Kernels& kernels, const Array& logits, const Array& targets,
                    const std::vector<std::int64_t>& cuts, DType gradient, float smoothing,
                    float scale, const StepState* state = nullptr, float cap = 0) {
  const At at(kernels);
  const std::int64_t rows = logits.shape()[0], classes = logits.shape()[1];
  const auto ranks = static_cast<std::int64_t>(cuts.size()) - 1;
  Sharded out;
  std::vector<Array> shards;
  Array all({ranks, rows, kShardStatistics}, DType::f32);
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
    const std::int64_t first = cuts[r], columns = cuts[r + 1] - first;
    shards.emplace_back(Shape{rows, columns}, DType::f32);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        shards[r].set(i * columns + j, logits.at(i * classes + first + j));
    out.statistics.emplace_back(Shape{rows, kShardStatistics}, DType::f32);
    kernels.loss().shard_statistics(shards[r], targets, first, cap, out.statistics[r], {});
    for (std::int64_t k = 0; k < rows * kShardStatistics; ++k)
      all.set(static_cast<std::int64_t>(r) * rows * kShardStatistics + k, out.statistics[r].at(k));
  }
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
    out.token_loss = Array({rows}, DType::f32);
    out.gradients.emplace_back(shards[r].shape(), gradient);
    ShardCrossEntropyArgs args;
    args.exponentials = shards[r];
    args.statistics = all;
    args.rank = static_cast<int>(r);
    args.targets = targets;
    args.first_class = cuts[r];
    args.classes = classes;
    args.soft_cap = cap;
    args.label_smoothing = smoothing;
    args.loss_scale = scale;
    args.state = state;
    args.token_loss = out.token_loss;
    args.dlogits = gradient == DType::f32 ? shards[r].view() : out.gradients[r].view();
    kernels.loss().shard_cross_entropy(args, {});
    // Move it, because the memory of a copied Array may differ.
    if (gradient == DType::f32) out.gradients[r] = std::move(shards[r]);
  }
  return out;
}

// The source of the scale must not change a single bit if the scale is a power of two.
TEST_F(LossTest, TheScaleMayBeInTheStepState) {
  for (DType dtype : {DType::f32, DType::f16}) {
    const Setting plain{.rows = 33,
                        .vocabulary = 130,
                        .dtype = dtype,
                        .bias = true,
                        .smoothing = 0.1f,
                        .loss_scale = 16};
    Setting there = plain;
    there.loss_scale = 0.5f;
    there.state_scale = 64;
    there.inverse_targets = 0.5f;
    check(plain);
    const Result a = run(ours_->loss(), ours_->device(), plain),
                 b = run(ours_->loss(), ours_->device(), there),
                 c = run(reference_->loss(), Device::cpu(), there);
    EXPECT_TRUE(a.dx.same_bytes(b.dx) && a.dweight.same_bytes(b.dweight) &&
                a.dbias.same_bytes(b.dbias) && a.loss_sum.same_bytes(b.loss_sum));
    EXPECT_TRUE(close(c.dweight, b.dweight, 8 * epsilon(dtype), 32));

    StepState state;
    state.loss_scale = 64;
    state.inverse_targets = 0.5f;
    const Placed<StepState> placed(state);
    const Array logits = Array::random({7, 33}, dtype, 1, 3);
    const Array targets = Array::integers({7}, -1, 32, 2);
    const auto gradient = [&](Kernels& kernels, float scale, bool has_state) {
      const At at(kernels);
      Array loss({1}, DType::f32), out({7, 33}, dtype);
      kernels.loss().cross_entropy({.logits = logits,
                                    .targets = targets,
                                    .loss_scale = scale,
                                    .state = has_state ? placed.get() : nullptr,
                                    .loss_sum = loss,
                                    .dlogits = out},
                                   {});
      return out;
    };
    EXPECT_TRUE(gradient(*ours_, 16, false).same_bytes(gradient(*ours_, 0.5f, true)));
    EXPECT_TRUE(close(gradient(*ours_, 0.5f, true), gradient(*reference_, 0.5f, true),
                      4 * epsilon(dtype), 16));
  }
  StepState state;
  state.loss_scale = 64;
  state.inverse_targets = 0.5f;
  const Placed<StepState> placed(state);
  const Array x = Array::random({101}, DType::f32, 3), wanted = Array::random({101}, DType::f32, 4);
  const auto of_numbers = [&](Kernels& kernels, float scale, bool has_state) {
    const At at(kernels);
    Array loss({1}, DType::f32), dx({101}, DType::f32);
    kernels.loss().squared_error({.x = x,
                                  .targets = wanted,
                                  .loss_scale = scale,
                                  .state = has_state ? placed.get() : nullptr,
                                  .loss_sum = loss,
                                  .dx = dx},
                                 {});
    return dx;
  };
  const Array classes = Array::random({5, 33}, DType::f32, 1, 3),
              rows = Array::integers({5}, -1, 32, 2);
  for (Kernels* kernels : {ours_.get(), reference_.get()}) {
    const auto of_shards = [&](float scale, const StepState* at) {
      return run_sharded(*kernels, classes, rows, {0, 14, 33}, DType::f32, 0.1f, scale, at);
    };
    const StepState* const there = kernels == ours_.get() ? placed.get() : &state;
    for (const std::size_t rank : {0, 1})
      EXPECT_TRUE(of_shards(16, nullptr)
                      .gradients[rank]
                      .same_bytes(of_shards(0.5f, there).gradients[rank]));
    EXPECT_TRUE(of_numbers(*kernels, 16, false).same_bytes(of_numbers(*kernels, 0.5f, true)));
  }
}

// Slices of 32 rows: the gradients of the weight and of the bias accumulate over slices.
TEST_F(LossTest, GradientsAccumulateOverManySlices) {
  CpuResources resources{2, memory_.get()};
  if (!on_cuda()) loss_ = make_cpu_loss(resources, ours_->elementwise(), 1);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (bool accumulate : {false, true})
      for (int ignored : {0, 2})
        check({.rows = 131,
               .columns = 5,
               .vocabulary = 99,
               .dtype = dtype,
               .bias = true,
               .accumulate = accumulate,
               .ignored_every = ignored});
}

// One vocabulary whose rows of f32 logits just fit a GPU's shared memory (GPT-2's, odd), and one
// whose rows do not fit. There are more rows than a slice has, and not a multiple. They are
// compared with the CPU's kernels, because the reference would take minutes.
TEST_F(LossTest, LargeVocabulariesMatchTheCpu) {
  if (!on_cuda()) GTEST_SKIP() << "the sizes of a GPU's slices take too long on the CPU";
  const auto cpu = make_cpu_kernels();
  const std::int64_t rows = has_little_time() ? 71 : 6001;
  for (const Setting& s : {Setting{.rows = rows, .columns = 8, .vocabulary = 50257, .bias = true},
                           Setting{.rows = 70,
                                   .columns = 8,
                                   .vocabulary = 50257,
                                   .dtype = DType::bf16,
                                   .ignored_every = 3},
                           Setting{.rows = 33,
                                   .columns = 8,
                                   .vocabulary = 128003,
                                   .dtype = DType::bf16,
                                   .accumulate = true,
                                   .smoothing = 0.1f}}) {
    SCOPED_TRACE(::testing::Message() << s.rows << " rows of " << s.vocabulary);
    compare(run(ours_->loss(), ours_->device(), s), run(ours_->loss(), ours_->device(), s),
            run(cpu->loss(), Device::cpu(), s), s);
  }
}

TEST_F(LossTest, ExtremeLogitsStayFinite) {
  Array logits({2, 3}, DType::f32), targets({2}, DType::i32), loss({1}, DType::f32);
  const double values[] = {1e30, -1e30, 0, 90, 89, -3e38};
  for (std::int64_t i = 0; i < 6; ++i) logits.set(i, values[i]);
  targets.set(0, 0);
  targets.set(1, 1);
  ours_->loss().cross_entropy({.logits = logits, .targets = targets, .loss_sum = loss}, {});
  EXPECT_NEAR(loss.at(0), 1 + std::log1p(std::exp(-1.0)), 1e-6);
}

// As in PyTorch: a masked class has probability 0, and a logit of NaN makes its row NaN.
TEST_F(LossTest, SupportsLogitsOfMinusInfinityAndNaN) {
  constexpr std::int64_t kClasses = 40;
  for (const std::int64_t odd : {0, 17, 39})
    for (const double value : {-std::numeric_limits<double>::infinity(), std::nan("")}) {
      Array logits = Array::random({1, kClasses}, DType::f32, 1), targets({1}, DType::i32);
      logits.set(odd, value);
      targets.set(0, 5);
      const auto run = [&](Kernels& kernels) {
        const At at(kernels);
        std::pair<Array, Array> out{Array({1}, DType::f32), Array({1, kClasses}, DType::f32)};
        kernels.loss().cross_entropy(
            {.logits = logits, .targets = targets, .loss_sum = out.first, .dlogits = out.second},
            {});
        return out;
      };
      for (Kernels* kernels : {ours_.get(), reference_.get()}) {
        const auto [loss, gradient] = run(*kernels);
        EXPECT_EQ(std::isnan(loss.at(0)), std::isnan(value)) << odd;
        for (std::int64_t j = 0; j < kClasses; ++j)
          EXPECT_EQ(std::isnan(gradient.at(j)), std::isnan(value)) << odd << " at " << j;
      }
      if (std::isnan(value)) continue;
      const auto ours = run(*ours_), expected = run(*reference_);
      EXPECT_EQ(ours.second.at(odd), 0);
      EXPECT_TRUE(close(ours.first, expected.first, 1e-6));
      EXPECT_TRUE(close(ours.second, expected.second, 1e-6));
    }
}

TEST_F(LossTest, CrossEntropyOfLogitsMatchesTheReference) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (DType gradient : {dtype, DType::f32})
      for (std::int64_t rows : {0, 1, 5, 64})
        for (std::int64_t vocabulary : {1, 2, 33, 1000})
          for (float smoothing : {0.0f, 0.1f}) {
            const Array logits = Array::random({rows, vocabulary}, dtype, 1, 3);
            Array targets =
                Array::integers({rows}, -1, static_cast<std::int32_t>(vocabulary) - 1, 2);
            const auto run = [&](Kernels& kernels) {
              const At at(kernels);
              std::pair<Array, Array> out{Array({1}, DType::f32),
                                          Array({rows, vocabulary}, gradient)};
              kernels.loss().cross_entropy({.logits = logits,
                                            .targets = targets,
                                            .label_smoothing = smoothing,
                                            .loss_scale = 2,
                                            .loss_sum = out.first,
                                            .dlogits = out.second},
                                           {});
              return out;
            };
            const auto ours = run(*ours_), expected = run(*reference_);
            EXPECT_TRUE(close(ours.first, expected.first, 2e-6, static_cast<double>(rows)));
            EXPECT_TRUE(close(ours.second, expected.second, epsilon(gradient) + 1e-6, 1));
          }
}

TEST_F(LossTest, SquaredErrorMatchesPlainSums) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t count : {0, 1, 7, 3000})
      for (const bool missing : {false, true}) {
        const auto run = [&](LossKernels& kernels, Device device, bool backward) {
          const At at(device);
          const Array x = Array::random({count}, dtype, 1);
          Array targets = Array::random({count}, DType::f32, 2);
          for (std::int64_t i = 0; missing && i < count; i += 3) targets.set(i, NAN);
          std::pair<Array, Array> out{Array({1}, DType::f32),
                                      backward ? Array({count}, dtype) : Array()};
          kernels.squared_error({.x = x,
                                 .targets = targets,
                                 .loss_scale = 0.25f,
                                 .loss_sum = out.first,
                                 .dx = out.second},
                                {});
          return out;
        };
        const auto ours = make_test_kernels();
        const auto reference = make_reference_kernels();
        const auto [sum, dx] = run(ours->loss(), ours->device(), true);
        const auto [expected, gradient] = run(reference->loss(), Device::cpu(), true);
        EXPECT_TRUE(close(sum, expected, 1e-5)) << count;
        EXPECT_TRUE(close(dx, gradient, epsilon(dtype))) << count;
        EXPECT_TRUE(run(ours->loss(), ours->device(), false).first.same_bytes(sum));
      }
}

TEST_F(LossTest, VocabularyShardsCombineToTheWhole) {
  for (const auto& cuts : {std::vector<std::int64_t>{0, 1},
                           {0, 0, 2, 2},
                           {0, 17, 18, 50},
                           {0, 65, 130},
                           {0, 31, 64, 1003}})
    for (const DType gradient : {DType::f32, DType::bf16, DType::f16})
      for (const std::int64_t rows : {0, 1, 33})
        for (const auto& [smoothing, cap] : {std::pair{0.0f, 0.0f}, {0.1f, 0.0f}, {0.1f, 2.5f}}) {
          SCOPED_TRACE(::testing::Message()
                       << rows << " rows of " << cuts.back() << " classes, " << to_string(gradient)
                       << " smoothing " << smoothing << " cap " << cap);
          const std::int64_t classes = cuts.back();
          const Array logits = Array::random({rows, classes}, DType::f32, 1, 3);
          const Array targets =
              Array::integers({rows}, -1, static_cast<std::int32_t>(classes) - 1, 2);
          const auto sharded = [&](Kernels& kernels) {
            return run_sharded(kernels, logits, targets, cuts, gradient, smoothing, 2, nullptr,
                               cap);
          };
          const Sharded ours = sharded(*ours_), plain = sharded(*reference_);
          Array capped = Array::random({rows, classes}, DType::f32, 1, 3);
          const auto bent = [&, wide = static_cast<double>(cap)](std::int64_t i) {
            return std::tanh(logits.at(i) / wide);
          };
          for (std::int64_t i = 0; cap > 0 && i < capped.count(); ++i)
            capped.set(i, static_cast<double>(cap) * bent(i));
          Array loss({1}, DType::f32), whole({rows, classes}, DType::f32);
          {
            const At host(Device::cpu());
            reference_->loss().cross_entropy({.logits = capped,
                                              .targets = targets,
                                              .label_smoothing = smoothing,
                                              .loss_scale = 2,
                                              .loss_sum = loss,
                                              .dlogits = whole},
                                             {});
          }
          for (std::int64_t i = 0; cap > 0 && i < whole.count(); ++i)
            whole.set(i, whole.at(i) * (1 - bent(i) * bent(i)));
          double sum = 0, plain_sum = 0;
          for (std::int64_t i = 0; i < rows; ++i) {
            sum += ours.token_loss.at(i);
            plain_sum += plain.token_loss.at(i);
          }
          EXPECT_NEAR(sum, loss.at(0), 2e-6 * (std::abs(loss.at(0)) + static_cast<double>(rows)));
          EXPECT_NEAR(plain_sum, loss.at(0), 1e-6 * (std::abs(loss.at(0)) + 1));
          for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
            EXPECT_TRUE(close(ours.statistics[r], plain.statistics[r], 2e-6, 10));
            const std::int64_t columns = cuts[r + 1] - cuts[r];
            Array part({rows, columns}, DType::f32);
            for (std::int64_t i = 0; i < rows; ++i)
              for (std::int64_t j = 0; j < columns; ++j)
                part.set(i * columns + j, whole.at(i * classes + cuts[r] + j));
            EXPECT_TRUE(close(ours.gradients[r], part, epsilon(gradient) + 1e-6, 1));
            EXPECT_TRUE(close(plain.gradients[r], part, epsilon(gradient) + 1e-6, 1));
          }
        }
}

// A fully masked shard has probability 0. A NaN makes the row NaN on every rank.
TEST_F(LossTest, VocabularyShardsSupportMinusInfinityAndNaN) {
  for (const double value : {-std::numeric_limits<double>::infinity(), std::nan("")}) {
    Array logits = Array::random({1, 40}, DType::f32, 1), targets({1}, DType::i32);
    for (std::int64_t j = 0; j < 20; ++j)
      if (!std::isnan(value) || j == 7) logits.set(j, value);
    targets.set(0, 25);
    Array loss({1}, DType::f32), whole({1, 40}, DType::f32);
    {
      const At host(Device::cpu());
      reference_->loss().cross_entropy(
          {.logits = logits, .targets = targets, .loss_sum = loss, .dlogits = whole}, {});
    }
    for (Kernels* kernels : {ours_.get(), reference_.get()}) {
      const Sharded out = run_sharded(*kernels, logits, targets, {0, 20, 40}, DType::f32, 0, 1);
      EXPECT_EQ(std::isnan(out.token_loss.at(0)), std::isnan(value));
      for (std::int64_t j = 0; j < 40; ++j) {
        const double gradient = out.gradients[j < 20 ? 0 : 1].at(j % 20);
        if (std::isnan(value))
          EXPECT_TRUE(std::isnan(gradient)) << j;
        else
          EXPECT_NEAR(gradient, whole.at(j), 1e-6) << j;
      }
    }
  }
}

TEST_F(LossTest, TargetsOutsideTheVocabularyAreNamed) {
  SHOAL_CPU_ONLY("a GPU reports them at a later call (tests/gpu)");
  const Array x = Array::random({3, 4}, DType::f32, 1),
              weight = Array::random({5, 4}, DType::f32, 2);
  Array targets = Array::integers({3}, 0, 4, 1), loss({1}, DType::f32);
  targets.set(2, 5);
  LinearCrossEntropyArgs args;
  args.x = x;
  args.weight = weight;
  args.targets = targets;
  args.loss_sum = loss;
  for (Kernels* kernels : {ours_.get(), reference_.get()}) try {
      kernels->loss().linear_cross_entropy(args, {});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), "cross entropy: target 5 of row 2 is outside the vocabulary of 5");
    }
}

}  // namespace
}  // namespace shoal::kernels
