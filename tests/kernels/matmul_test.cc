#include "shoal/kernels/matmul.h"

#include <cstdlib>
#include <functional>
#include <thread>
#include <utility>

#include "array.h"
#include <gmock/gmock.h>

#include "shoal/kernels/cpu/narrow_product.h"
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

struct Case {
  std::int64_t m, n, k;
};

class MatmulTest : public ::testing::Test {
 protected:
  // Compares c of both implementations for one setting, and runs the tested one twice.
  void check(Case size, DType input, DType output, bool ta, bool tb, bool accumulate,
             std::int64_t groups = 0, std::int64_t offset = 0) {
    const auto [m, n, k] = size;
    const auto shape = [&](std::int64_t r, std::int64_t c) {
      return groups > 0 ? Shape{groups, r, c} : Shape{r, c};
    };
    const Array a = Array::random(ta ? shape(k, m) : shape(m, k), input, 1, 1, offset),
                b = Array::random(tb ? shape(n, k) : shape(k, n), input, 2, 1, offset);
    const auto run = [&](Kernels& kernels) {
      const At at(kernels);
      Array c = accumulate ? Array::random(shape(m, n), output, 3, 1, offset)
                           : Array(shape(m, n), output, offset);
      MatmulArgs args;
      args.a = a;
      args.b = b;
      args.c = c;
      args.transpose_a = ta;
      args.transpose_b = tb;
      args.accumulate = accumulate;
      if (groups > 0)
        kernels.matmul().batched_matmul(args, {});
      else
        kernels.matmul().matmul(args, {});
      return c;
    };
    const Array ours = run(*ours_), expected = run(*reference_);
    const double scale = std::sqrt(static_cast<double>(k) + 1);
    EXPECT_TRUE(close(ours, expected, 2 * epsilon(output) + 16 * 0x1p-23, scale))
        << "m " << m << " n " << n << " k " << k << " " << to_string(input) << " -> "
        << to_string(output) << (ta ? " ta" : "") << (tb ? " tb" : "")
        << (accumulate ? " accumulate" : "");
    EXPECT_TRUE(run(*ours_).same_bytes(ours)) << "a second call differs";
  }

  std::unique_ptr<Kernels> ours_ = make_test_kernels();
  std::unique_ptr<Kernels> reference_ = make_reference_kernels();
};

constexpr DType kInputs[] = {DType::f32, DType::bf16, DType::f16};

TEST_F(MatmulTest, SupportsEveryTranspositionDtypeAndAccumulation) {
  for (DType input : kInputs)
    for (DType output : {input, DType::f32})
      for (int bits = 0; bits < 8; ++bits)
        for (Case size : {Case{1, 1, 1}, Case{33, 17, 48}, Case{65, 40, 129}})
          check(size, input, output, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0);
}

TEST_F(MatmulTest, SupportsEmptySizes) {
  for (DType input : kInputs)
    for (Case size : {Case{0, 3, 4}, Case{3, 0, 4}, Case{3, 4, 0}, Case{0, 0, 0}})
      for (bool accumulate : {false, true}) check(size, input, input, false, false, accumulate);
}

TEST_F(MatmulTest, SupportsUnalignedData) {
  for (DType input : kInputs) check({37, 29, 64}, input, input, false, true, false, 0, 1);
}

// oneDNN 2.6.3 on AMX crashes if K ≡ 31 (mod 32); m 257, n 17, k 63 always crashed.
TEST_F(MatmulTest, SupportsHazardousInnerSizes) {
  for (std::int64_t k : {31, 63, 95, 127, 159, 255, 511, 1023})
    for (Case size : {Case{257, 17, k}, Case{1, 31, k}, Case{64, 65, k}, Case{15, 257, k}})
      for (int bits = 0; bits < 4; ++bits)
        check(size, DType::bf16, DType::f32, (bits & 1) != 0, (bits & 2) != 0, false);
}

TEST_F(MatmulTest, SupportsManyOddShapes) {
  std::mt19937 generator(7);
  const auto pick = [&](std::int64_t high) {
    return 1 + static_cast<std::int64_t>(generator() % static_cast<unsigned>(high));
  };
  for (int i = 0; i < 60; ++i)
    check({pick(70), pick(70), pick(200)}, kInputs[i % 3], i % 2 ? DType::f32 : kInputs[i % 3],
          pick(2) == 1, pick(2) == 1, pick(2) == 1);
}

TEST_F(MatmulTest, SupportsBatches) {
  for (DType input : kInputs)
    for (int bits = 0; bits < 4; ++bits) {
      check({9, 20, 33}, input, input, (bits & 1) != 0, (bits & 2) != 0, false, 5);
      check({16, 16, 64}, input, DType::f32, (bits & 1) != 0, (bits & 2) != 0, true, 1);
    }
  check({4, 4, 4}, DType::f32, DType::f32, false, false, false, 2);
}

TEST_F(MatmulTest, SupportsBiasActivationAndPreActivation) {
  for (DType dtype : kInputs)
    for (DType bias_dtype : {DType::f32, dtype})
      for (Activation kind : {Activation::none, Activation::gelu_tanh, Activation::gelu_erf,
                              Activation::tanh, Activation::relu})
        for (bool keep : {false, true})
          for (const auto& [n, k] : {std::pair{45, 0}, {45, 31}, {45, 64}, {48, 0}, {48, 64}}) {
            const Array a = Array::random({3, 7, k}, dtype, 1),
                        b = Array::random({n, k}, dtype, 2, 0.2f),
                        bias = Array::random({n}, bias_dtype, 3);
            const auto run = [&](Kernels& kernels) {
              const At at(kernels);
              std::pair<Array, Array> out{Array({3, 7, n}, dtype),
                                          keep ? Array({3, 7, n}, dtype) : Array()};
              MatmulArgs args;
              args.a = a;
              args.b = b;
              args.c = out.first;
              args.transpose_b = true;
              args.bias = bias;
              args.activation = kind;
              args.pre_activation = out.second;
              kernels.matmul().matmul(args, {});
              return out;
            };
            const auto ours = run(*ours_), expected = run(*reference_);
            const double tolerance = 3 * epsilon(dtype) + 16 * 0x1p-23;
            EXPECT_TRUE(close(ours.first, expected.first, tolerance, 0.5))
                << to_string(dtype) << " n " << n << " k " << k << (keep ? " kept" : "");
            if (keep) {
              EXPECT_TRUE(close(ours.second, expected.second, tolerance, 0.5));
            }
          }
}

// The gradient of a value before an activation. Fused kernels support 48 columns but not 45.
TEST_F(MatmulTest, ComputesGradientsThroughAnActivation) {
  for (DType input : kInputs)
    for (DType output : {input, DType::f32})
      for (Activation kind : {Activation::none, Activation::gelu_tanh, Activation::gelu_erf,
                              Activation::tanh, Activation::relu})
        for (const auto& [n, k] : {std::pair{45, 0}, {45, 31}, {45, 64}, {48, 64}}) {
          const Array a = Array::random({3, 7, k}, input, 1),
                      b = Array::random({n, k}, input, 2, 0.2f),
                      before = Array::random({3, 7, n}, output, 3, 2);
          const auto run = [&](Kernels& kernels) {
            const At at(kernels);
            Array c({3, 7, n}, output);
            MatmulArgs args;
            args.a = a;
            args.b = b;
            args.c = c;
            args.transpose_b = true;
            args.activation = kind;
            args.activation_input = before;
            kernels.matmul().matmul(args, {});
            return c;
          };
          const Array ours = run(*ours_);
          EXPECT_TRUE(close(ours, run(*reference_), 3 * epsilon(output) + 16 * 0x1p-23, 0.5))
              << to_string(input) << " -> " << to_string(output) << " n " << n << " k " << k;
          EXPECT_TRUE(run(*ours_).same_bytes(ours)) << "a second call differs";
        }
}

// Sizes for which a library uses its usual kernels.
TEST_F(MatmulTest, SupportsWholeTiles) {
  for (DType input : kInputs)
    for (int bits = 0; bits < 8; ++bits)
      check({128, 256, 64}, input, (bits & 4) != 0 ? DType::f32 : input, (bits & 1) != 0,
            (bits & 2) != 0, (bits & 4) != 0);
}

// Tests edges of tiles (6 rows, 16 or 32 columns), of panels and of blocks of k (256), on any
// machine.
TEST_F(MatmulTest, SupportsFewRows) {
  SHOAL_CPU_ONLY("narrow_product exists only on the CPU");
  for (const Case& size : {Case{1, 64, 64},
                           {24, 16, 256},
                           {29, 65, 257},
                           {128, 100, 255},
                           {263, 33, 513},
                           {31, 7, 1},
                           {6, 131, 600}})
    for (const bool accumulate : {false, true}) {
      const Array a = Array::random({size.m, size.k}, DType::f32, 1),
                  b = Array::random({size.k, size.n}, DType::f32, 2),
                  bias = Array::random({size.n}, DType::f32, 3);
      const auto start = [&] {
        return accumulate ? Array::random({size.m, size.n}, DType::f32, 4)
                          : Array({size.m, size.n}, DType::f32);
      };
      const auto run = [&](int threads) {
        Array c = start();
        GemmProblem problem;
        problem.m = size.m;
        problem.n = size.n;
        problem.k = size.k;
        problem.accumulate = accumulate;
        problem.has_bias = !accumulate;
        narrow_product(problem, threads, ConstView(a).as<float>(), ConstView(b).as<float>(),
                       accumulate ? nullptr : ConstView(bias).as<float>(), View(c).as<float>());
        return c;
      };
      Array expected = start();
      MatmulArgs args;
      args.a = a;
      args.b = b;
      args.c = expected;
      args.accumulate = accumulate;
      if (!accumulate) args.bias = bias;
      reference_->matmul().matmul(args, {});
      const Array ours = run(1);
      EXPECT_TRUE(close(ours, expected, 18 * 0x1p-23, std::sqrt(static_cast<double>(size.k) + 1)))
          << "m " << size.m << " n " << size.n << " k " << size.k;
      EXPECT_TRUE(run(3).same_bytes(ours)) << "depends on the number of threads";
    }
}

TEST_F(MatmulTest, SumsRows) {
  for (DType dtype : kInputs)
    for (std::int64_t rows : {0, 1, 255, 256, 257, 1000})
      for (std::int64_t columns : {1, 7, 64, 131})
        for (bool accumulate : {false, true}) {
          const Array x = Array::random({rows, columns}, dtype, 1);
          const auto run = [&](Kernels& kernels) {
            const At at(kernels);
            Array out =
                accumulate ? Array::random({columns}, DType::f32, 2) : Array({columns}, DType::f32);
            kernels.matmul().sum_rows(x, out, accumulate, {});
            return out;
          };
          const Array ours = run(*ours_);
          EXPECT_TRUE(close(ours, run(*reference_), 1e-5, 4)) << rows << " x " << columns;
          EXPECT_TRUE(run(*make_test_kernels(1)).same_bytes(ours))
              << "depends on the number of threads";
        }
}

// The operand whose column sums are the gradient of a bias, and which outputs accumulate.
struct Beside {
  bool of_a = false, accumulate = false, accumulate_bias = false;
  std::int64_t offset = 0;
};

// Compares the gradients of a weight and a bias with the product and sum_rows(). They must have the
// same bits if a separate GPU kernel sums. If cuBLASLt sums, they may differ slightly.
void check_beside(Kernels& ours, Kernels& reference, Case size, DType input, DType output,
                  const Beside& how, bool bits) {
  const auto [m, n, k] = size;
  const Array a = Array::random({k, m}, input, 1, 1, how.offset),
              b = Array::random({k, n}, input, 2, 1, how.offset);
  const auto outputs = [&] {
    const Shape sums{how.of_a ? m : n};
    return std::pair(how.accumulate ? Array::random({m, n}, output, 3, 1, how.offset)
                                    : Array({m, n}, output, how.offset),
                     how.accumulate_bias ? Array::random(sums, DType::f32, 4, 1, how.offset)
                                         : Array(sums, DType::f32, how.offset));
  };
  const auto run = [&](Kernels& kernels, bool apart) {
    const At at(kernels);
    auto out = outputs();
    MatmulArgs args;
    args.a = a;
    args.b = b;
    args.c = out.first;
    args.transpose_a = true;
    args.accumulate = how.accumulate;
    if (!apart) {
      args.bias_gradient = out.second;
      args.bias_gradient_of_a = how.of_a;
      args.accumulate_bias_gradient = how.accumulate_bias;
    }
    kernels.matmul().matmul(args, {});
    if (apart) kernels.matmul().sum_rows(how.of_a ? a : b, out.second, how.accumulate_bias, {});
    return out;
  };
  const auto got = run(ours, false), expected = run(reference, false), apart = run(ours, true);
  const double scale = std::sqrt(static_cast<double>(k) + 1);
  const std::string what =
      fmt::format("m {} n {} k {} {} -> {}{}{}{} offset {}", m, n, k, to_string(input),
                  to_string(output), how.of_a ? " of a" : " of b", how.accumulate ? " adds" : "",
                  how.accumulate_bias ? " adds sums" : "", how.offset);
  EXPECT_TRUE(close(got.first, expected.first, 2 * epsilon(output) + 16 * 0x1p-23, scale)) << what;
  EXPECT_TRUE(close(got.second, expected.second, 1e-5, 4)) << what;
  if (bits) {
    EXPECT_TRUE(got.first.same_bytes(apart.first)) << what << ": the product has other bits";
    EXPECT_TRUE(got.second.same_bytes(apart.second)) << what << ": the sums have other bits";
  }
  const auto again = run(ours, false);
  EXPECT_TRUE(again.first.same_bytes(got.first)) << what << ": a second call differs";
  EXPECT_TRUE(again.second.same_bytes(got.second)) << what << ": a second call's sums differ";
}

void check_all_beside(Kernels& ours, Kernels& reference, bool bits) {
  for (DType input : kInputs)
    for (DType output : {input, DType::f32})
      for (int flags = 0; flags < 8; ++flags) {
        const Beside how{(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0};
        for (const Case& size : {Case{1, 1, 1},
                                 {17, 40, 31},
                                 {64, 24, 129},
                                 {0, 5, 7},
                                 {5, 0, 7},
                                 {6, 3, 0},
                                 {33, 31, 1023}}) {
          if (has_little_time() && size.k > 200 && flags != 6) continue;
          check_beside(ours, reference, size, input, output, how, bits);
        }
        check_beside(ours, reference, {16, 24, 63}, input, output,
                     {how.of_a, how.accumulate, how.accumulate_bias, 1}, bits);
      }
}

TEST_F(MatmulTest, SumsABiasGradientBesideAWeightGradient) {
  check_all_beside(*ours_, *reference_, true);
}

// Sums with cuBLASLt, and with a separate kernel. A thread's CUDA kernels read the variable on
// first use.
TEST_F(MatmulTest, SumsABiasGradientWithinAProductOnAGpu) {
  if (!on_cuda()) GTEST_SKIP() << "needs a GPU: the CPU always sums separately";
  for (const bool within : {false, true}) {
    ::setenv("SHOAL_CUDA_BIAS_GRADIENT", within ? "product" : "pass", 1);
    std::thread([&] {
      try {
        check_all_beside(*make_test_kernels(), *reference_, !within);
      } catch (const std::exception& problem) {
        ADD_FAILURE() << problem.what();
      }
    }).join();
    ::unsetenv("SHOAL_CUDA_BIAS_GRADIENT");
  }
}

TEST_F(MatmulTest, ABiasGradientThatCannotBeSummedIsRefused) {
  const Array a({3, 2}, DType::f32), b({3, 4}, DType::f32), c({2, 4}, DType::f32),
      of_a({2}, DType::f32), of_b({4}, DType::f32), narrow({4}, DType::bf16),
      kept({2, 4}, DType::f32), turned_a({2, 3}, DType::f32), turned_b({4, 3}, DType::f32);
  const auto refused = [&](const std::function<void(MatmulArgs&)>& change) {
    MatmulArgs args;
    args.a = a;
    args.b = b;
    args.c = c;
    args.transpose_a = true;
    args.bias_gradient = of_b;
    change(args);
    for (Kernels* kernels : {ours_.get(), reference_.get()}) {
      const At at(*kernels);
      EXPECT_THROW(kernels->matmul().matmul(args, {}), Error);
    }
  };
  refused([&](MatmulArgs& args) { args.bias = of_b; });
  refused([&](MatmulArgs& args) { args.activation = Activation::relu; });
  refused([&](MatmulArgs& args) { args.pre_activation = kept; });
  refused([&](MatmulArgs& args) { args.bias_gradient = narrow; });
  refused([&](MatmulArgs& args) { args.bias_gradient = of_a; });
  refused([&](MatmulArgs& args) { args.bias_gradient_of_a = true; });
  refused([&](MatmulArgs& args) {
    args.b = turned_b;
    args.transpose_b = true;
  });
  refused([&](MatmulArgs& args) {
    args.a = turned_a;
    args.transpose_a = false;
    args.bias_gradient = of_a;
    args.bias_gradient_of_a = true;
  });
}

// More shapes than the cache holds. Results stay correct, and the cache does not grow.
TEST_F(MatmulTest, CacheIsBounded) {
  for (std::int64_t n = 1; n <= 530; ++n) {
    const Array a = Array::random({1, 2}, DType::f32, 1), b = Array::random({2, n}, DType::f32, 2);
    Array c({1, n}, DType::f32);
    MatmulArgs args;
    args.a = a;
    args.b = b;
    args.c = c;
    ours_->matmul().matmul(args, {});
    ASSERT_NEAR(c.at(n - 1), a.at(0) * b.at(n - 1) + a.at(1) * b.at(2 * n - 1), 1e-5);
  }
  check({1, 1, 2}, DType::f32, DType::f32, false, false, false);
}

TEST_F(MatmulTest, OptionsThatExcludeAnActivationInputAreRefused) {
  const Array a({2, 3}, DType::f32), b({3, 4}, DType::f32), c({2, 4}, DType::f32),
      before({2, 4}, DType::f32), bias({4}, DType::f32), short_one({4}, DType::f32);
  const auto refused = [&](const std::function<void(MatmulArgs&)>& change) {
    MatmulArgs args;
    args.a = a;
    args.b = b;
    args.c = c;
    args.activation = Activation::gelu_tanh;
    args.activation_input = before;
    change(args);
    for (Kernels* kernels : {ours_.get(), reference_.get()}) {
      const At at(*kernels);
      EXPECT_THROW(kernels->matmul().matmul(args, {}), Error);
    }
  };
  refused([&](MatmulArgs& args) { args.bias = bias; });
  refused([&](MatmulArgs& args) { args.pre_activation = before; });
  refused([&](MatmulArgs& args) { args.accumulate = true; });
  refused([&](MatmulArgs& args) { args.activation_input = c; });
  refused([&](MatmulArgs& args) { args.activation_input = short_one; });
}

TEST_F(MatmulTest, ErrorsNameTheShapes) {
  const Array a({2, 3}, DType::f32), b({4, 5}, DType::f32), c({2, 5}, DType::f32);
  MatmulArgs args;
  for (Kernels* kernels : {ours_.get(), reference_.get()}) try {
      const At at(*kernels);
      args.a = a;
      args.b = b;
      args.c = c;
      kernels->matmul().matmul(args, {});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.message(),
                  ::testing::HasSubstr("the inner sizes differ: a [2, 3] · b [4, 5]"));
    }
}

}  // namespace
}  // namespace shoal::kernels
