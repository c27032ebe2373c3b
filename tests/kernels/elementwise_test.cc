#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "support.h"
#include <hwy/highway.h>

namespace shoal::kernels::testing {
namespace {

SHOAL_ON_EACH_TARGET(Elementwise);

constexpr std::int64_t kCounts[] = {0, 1, 3, 17, 1000, 100003};

TEST_P(Elementwise, AddsScalesAndAccumulates) {
  for (const DType dtype : kTrainingDTypes)
    for (const std::int64_t count : kCounts) {
      const Shape shape{count};
      const Host a = Host::random(shape, dtype, 1), b = Host::random(shape, dtype, 2);
      const auto poisoned = [&] { return Hosts{Host(shape, dtype)}; };
      verify("add", poisoned,
             [&](Kernels& k, Hosts& out) { k.elementwise().add(a, b, out[0], {}); });
      verify("scale", poisoned,
             [&](Kernels& k, Hosts& out) { k.elementwise().scale(a, -0.3f, out[0], {}); });
      verify(
          "axpy", [&] { return Hosts{b}; },
          [&](Kernels& k, Hosts& out) { k.elementwise().axpy(0.7f, a, out[0], {}); });
      verify(
          "add in place", [&] { return Hosts{b}; },
          [&](Kernels& k, Hosts& out) { k.elementwise().add(a, out[0], out[0], {}); });
      verify("fill", poisoned,
             [&](Kernels& k, Hosts& out) { k.elementwise().fill(out[0], 0.1f, {}); });
    }
}

TEST_P(Elementwise, AddsBias) {
  for (const DType dtype : kTrainingDTypes)
    for (const DType bias_dtype : {DType::f32, dtype})
      for (const Shape& shape :
           {Shape{0, 5}, Shape{3, 1}, Shape{7, 33}, Shape{300, 768}, Shape{1, 140001}}) {
        const Host x = Host::random(shape, dtype, 1);
        const Host bias = Host::random(Shape{shape.columns()}, bias_dtype, 2);
        verify(
            "add_bias", [&] { return Hosts{Host(shape, dtype)}; },
            [&](Kernels& k, Hosts& out) { k.elementwise().add_bias(x, bias, out[0], {}); });
      }
}

TEST_P(Elementwise, CastsBetweenAnyTwoDtypes) {
  const std::int64_t many = has_little_time() ? 9001 : 70001;
  for (const DType from : kAllDTypes)
    for (const DType to : kAllDTypes)
      for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{19}, many}) {
        // Within the range of both dtypes if one is an integer. Other tests cover the edges.
        const double low = from == DType::u8 || to == DType::u8 ? 0 : -120;
        const Host x = Host::random(Shape{count}, from, 3, low, 120);
        verify(
            std::string(to_string(from)) + " to " + std::string(to_string(to)),
            [&] { return Hosts{Host(Shape{count}, to)}; },
            [&](Kernels& k, Hosts& out) { k.elementwise().cast(x, out[0], {}); }, kExact);
      }
}

// On any device, either side of a cast may be in (pageable) host memory.
TEST_P(Elementwise, CastsFromAndToHostMemory) {
  const Shape shape{1001};
  const auto kernels = make_test_kernels();
  const std::pair<DType, DType> pairs[] = {{DType::f32, DType::bf16},
                                           {DType::f32, DType::f32},
                                           {DType::bf16, DType::f32},
                                           {DType::i32, DType::i64}};
  for (const auto& [from, to] : pairs) {
    const Host x = Host::random(shape, from, 1, -120, 120);
    Host there(shape, to), back(shape, from), expected(shape, from);
    {
      const At host(Device::cpu());
      Host converted(shape, to);
      make_reference_kernels()->elementwise().cast(x, converted, {});
      make_reference_kernels()->elementwise().cast(converted, expected, {});
    }
    kernels->elementwise().cast({x.host_data(), shape, from}, there, {});
    kernels->elementwise().cast(there, {back.host_data(), shape, from}, {});
    EXPECT_TRUE(close(back, expected, kExact)) << to_string(from) << " by way of " << to_string(to);
  }
}

TEST(Cast, SaturatesTowardZeroAndWraps) {
  const auto kernels = make_test_kernels();
  Host x(Shape{6}, DType::f32), bytes(Shape{6}, DType::u8), words(Shape{6}, DType::i32);
  const double values[] = {-1.9, 255.9, 1e10, -1e10, std::nan(""), 3.99};
  for (int i = 0; i < 6; ++i) x.set(i, values[i]);
  kernels->elementwise().cast(x, bytes, {});
  kernels->elementwise().cast(x, words, {});
  const double as_bytes[] = {0, 255, 255, 0, 0, 3};
  const double as_words[] = {-1, 255, 2147483647, -2147483648.0, 0, 3};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(bytes.at(i), as_bytes[i]) << i;
    EXPECT_EQ(words.at(i), as_words[i]) << i;
  }
  Host big = Host::filled(Shape{1}, DType::i32, 300);
  Host wrapped(Shape{1}, DType::i8);
  kernels->elementwise().cast(big, wrapped, {});
  EXPECT_EQ(wrapped.at(0), 44);
}

// Widens every 16-bit pattern and narrows f32 around every tie, and compares with the scalar types.
template <class T>
void expect_same_conversions(DType dtype) {
  const auto kernels = make_test_kernels();
  constexpr std::int64_t kPatterns = 65536;
  Host patterns(Shape{kPatterns}, dtype), widened(Shape{kPatterns}, DType::f32);
  T* narrow = static_cast<T*>(patterns.host_data());
  std::vector<float> inputs;
  for (std::uint32_t i = 0; i < kPatterns; ++i) narrow[i].bits = static_cast<std::uint16_t>(i);
  kernels->elementwise().cast(patterns, widened, {});
  const auto* wide = static_cast<const float*>(widened.host_data());
  narrow = static_cast<T*>(patterns.host_data());
  for (std::uint32_t i = 0; i < kPatterns; ++i) {
    const auto expected = static_cast<float>(narrow[i]);
    if (std::isnan(expected))
      ASSERT_TRUE(std::isnan(wide[i])) << i;
    else
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected)) << i;
  }
  for (std::uint32_t i = 0; i + 1 < kPatterns; ++i) {
    const auto low = static_cast<float>(narrow[i]), high = static_cast<float>(narrow[i + 1]);
    const float middle = std::isfinite(low) && std::isfinite(high) ? 0.5f * low + 0.5f * high : low;
    for (const float value :
         {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)})
      inputs.push_back(value);
  }
  std::mt19937 engine(5);
  for (int i = 0; i < 100000; ++i)
    inputs.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(engine())));
  inputs.push_back(65519.99f);
  inputs.push_back(65520.0f);
  const auto count = static_cast<std::int64_t>(inputs.size());
  Host values(Shape{count}, DType::f32), narrowed(Shape{count}, dtype);
  std::memcpy(values.host_data(), inputs.data(), inputs.size() * sizeof(float));
  kernels->elementwise().cast(values, narrowed, {});
  const auto* rounded = static_cast<const T*>(narrowed.host_data());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const T expected(inputs[i]);
    if (std::isnan(inputs[i]))
      ASSERT_TRUE(std::isnan(static_cast<float>(rounded[i]))) << i;
    else
      ASSERT_EQ(rounded[i].bits, expected.bits) << inputs[i];
  }
}

TEST_P(Elementwise, RoundsToNearestEven) {
  expect_same_conversions<bfloat16>(DType::bf16);
  expect_same_conversions<float16>(DType::f16);
}

TEST_P(Elementwise, Transposes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i8})
    for (const Shape& shape : {Shape{0, 3}, Shape{1, 1}, Shape{5, 130}, Shape{129, 67},
                               Shape{700, 300}, Shape{3, 40, 2}, Shape{2, 3, 65, 70}}) {
      const Host x = Host::random(shape, dtype, 1);
      const Shape turned = shape.with(-2, shape[-1]).with(-1, shape[-2]);
      verify(
          "transpose", [&] { return Hosts{Host(turned, dtype)}; },
          [&](Kernels& k, Hosts& out) { k.elementwise().transpose(x, out[0], {}); }, kExact);
    }
}

TEST_P(Elementwise, ComputesActivations) {
  for (const Activation kind : {Activation::none, Activation::gelu_tanh, Activation::gelu_erf,
                                Activation::tanh, Activation::relu})
    for (const DType dtype : kTrainingDTypes)
      for (const std::int64_t count : {0, 1, 19, 40001}) {
        Host x = Host::random(Shape{count}, dtype, 4, -12, 12);
        if (count > 20) {
          const double huge = dtype == DType::f16 ? 65000 : 1e30;
          const double special[] = {0,
                                    -0.0,
                                    huge,
                                    -huge,
                                    60000,
                                    -60000,
                                    std::numeric_limits<double>::infinity(),
                                    std::nan("")};
          for (int i = 0; i < 8; ++i) x.set(i, special[i]);
        }
        const Host dy = Host::random(Shape{count}, dtype, 5);
        const auto poisoned = [&] { return Hosts{Host(Shape{count}, dtype)}; };
        verify("activation", poisoned,
               [&](Kernels& k, Hosts& out) { k.elementwise().activation(kind, x, out[0], {}); },
               {4e-7, 1e-7});
        if (count > 20) x.set(6, 11);  // the derivative at infinity is inf * 0
        verify("activation_backward", poisoned,
               [&](Kernels& k, Hosts& out) {
                 k.elementwise().activation_backward(kind, x, dy, out[0], {});
               },
               {1e-6, 4e-7});
      }
}

TEST_P(Elementwise, Multiplies) {
  for (const DType dtype : kTrainingDTypes)
    for (const std::int64_t count : {0, 1, 19, 40001}) {
      const Shape shape{count};
      const Host a = Host::random(shape, dtype, 4, -12, 12), b = Host::random(shape, dtype, 5);
      verify(
          "multiply", [&] { return Hosts{Host(shape, dtype)}; },
          [&](Kernels& k, Hosts& out) { k.elementwise().multiply(a, b, out[0], {}); }, {1e-7, 0});
      verify(
          "multiply in place", [&] { return Hosts{a}; },
          [&](Kernels& k, Hosts& out) { k.elementwise().multiply(out[0], b, out[0], {}); },
          {1e-7, 0});
    }
}

TEST_P(Elementwise, ComputesSwiglu) {
  for (const DType dtype : kTrainingDTypes)
    for (const std::int64_t count : {0, 1, 19, 40001}) {
      const Shape shape{count};
      Host gate = Host::random(shape, dtype, 4, -12, 12);
      const Host up = Host::random(shape, dtype, 5), dout = Host::random(shape, dtype, 6);
      const double huge = dtype == DType::f16 ? 65000 : 1e30;
      const double special[] = {0, -0.0, huge, -huge, -1.278464542761074, -100, 100, std::nan("")};
      for (int i = 0; count > 20 && i < 8; ++i) gate.set(i, special[i]);
      verify(
          "swiglu", [&] { return Hosts{Host(shape, dtype)}; },
          [&](Kernels& k, Hosts& out) { k.elementwise().swiglu(gate, up, out[0], {}); },
          {6e-7, 1e-7});
      const auto backward = [&](Kernels& k, const ConstView& g, const ConstView& u, Hosts& out) {
        k.elementwise().swiglu_backward(g, u, dout, out[0], out[1], {});
      };
      verify(
          "swiglu_backward", [&] { return Hosts{Host(shape, dtype), Host(shape, dtype)}; },
          [&](Kernels& k, Hosts& out) { backward(k, gate, up, out); }, {1e-6, 1e-6});
      verify(
          "swiglu_backward in place", [&] { return Hosts{gate, up}; },
          [&](Kernels& k, Hosts& out) { backward(k, out[0], out[1], out); }, {1e-6, 1e-6});
    }
}

// Compares f32 with double: a few units in the last place, far into the negative tail.
TEST_P(Elementwise, GeluKeepsRelativePrecision) {
  constexpr std::int64_t kCount = 200001;
  const auto kernels = make_test_kernels();
  Host x(Shape{kCount}, DType::f32);
  for (std::int64_t i = 0; i < kCount; ++i) x.set(i, -6 + 12.0 * static_cast<double>(i) / kCount);
  for (const Activation kind : {Activation::gelu_tanh, Activation::gelu_erf}) {
    Host actual(Shape{kCount}, DType::f32);
    kernels->elementwise().activation(kind, x, actual, {});
    double worst = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const double v = x.at(i);
      // Uses erfc and the logistic function, because 1 + erf and 1 + tanh would cancel even in
      // double.
      const double expected = kind == Activation::gelu_erf
                                  ? 0.5 * v * std::erfc(-v / std::sqrt(2.0))
                                  : v / (1 + std::exp(-2 * std::sqrt(2 / 3.14159265358979323846) *
                                                      (v + 0.044715 * v * v * v)));
      if (expected != 0)
        worst = std::max(worst, std::abs(actual.at(i) - expected) / std::abs(expected));
    }
    // The tanh form's exponent reaches 25, which multiplies its argument's rounding error. Without
    // fused multiply-add, the erf form cannot recover the rounding of x * x.
    const bool fused = GetParam() <= HWY_AVX2;
    // With CUDA's functions the erf form differed by 8.4 units on an H200.
    const double units = kind == Activation::gelu_tanh ? 80 : on_cuda() ? 10 : fused ? 8 : 24;
    EXPECT_LT(worst, units * 0x1p-24);
    RecordProperty(kind == Activation::gelu_erf ? "erf_units" : "tanh_units",
                   std::to_string(worst * 0x1p24));
  }
}

DropoutArgs dropout_args(float probability) {
  DropoutArgs args;
  args.probability = probability;
  args.site.seed = 0x123456789abcdefull;
  args.site.site = 77;
  args.site.sample_first = 5;
  args.site.sample_stride = 3;
  args.rows_per_sample = 4;
  args.row_offset = 9;
  args.column_offset = 6;
  args.columns = 5000;
  return args;
}

TEST_P(Elementwise, DropoutTakesTheBitsOfItsCoordinates) {
  StepState state;
  state.step = 12;
  const Placed<StepState> placed(state);
  DropoutArgs args = dropout_args(0.3f), on_host = args;
  args.site.state = placed.get();
  on_host.site.state = &state;
  const auto kernels = make_test_kernels();
  for (const std::int64_t columns : {1, 7, 768, 2500}) {
    const Host x = Host::filled(Shape{50, columns}, DType::f32, 2);
    Host out(Shape{50, columns}, DType::f32);
    kernels->elementwise().dropout(args, x, out, {});
    for (std::int64_t i = 0; i < x.count(); ++i) {
      const std::int64_t row = i / columns;
      const auto sample = static_cast<std::uint32_t>(5 + 3 * (row / 4));
      const auto element = static_cast<std::uint64_t>((9 + row % 4) * 5000 + 6 + i % columns);
      const bool kept = random_bits(on_host.site, sample, element) >= dropout_threshold(0.3f);
      ASSERT_EQ(out.at(i), kept ? 2 * (1 / (1 - 0.3f)) : 0.0f) << i;
    }
  }
}

TEST_P(Elementwise, AppliesDropout) {
  for (const DType dtype : kTrainingDTypes)
    for (const float probability : {0.0f, 0.1f, 0.999f})
      for (const Shape& shape : {Shape{0, 3}, Shape{1, 1}, Shape{13, 31}, Shape{64, 1500}}) {
        const DropoutArgs args = dropout_args(probability);
        const Host x = Host::random(shape, dtype, 1), residual = Host::random(shape, dtype, 2);
        const auto poisoned = [&] { return Hosts{Host(shape, dtype)}; };
        verify("dropout", poisoned,
               [&](Kernels& k, Hosts& out) { k.elementwise().dropout(args, x, out[0], {}); });
        verify("dropout_add", poisoned, [&](Kernels& k, Hosts& out) {
          k.elementwise().dropout_add(args, x, residual, out[0], {});
        });
      }
}

TEST_P(Elementwise, DropoutOfColumnShardsMatchesTheWhole) {
  const auto kernels = make_test_kernels();
  DropoutArgs args = dropout_args(0.5f);
  args.column_offset = 0;
  args.columns = 30;
  const Host x = Host::random(Shape{8, 30}, DType::f32, 1);
  Host whole(Shape{8, 30}, DType::f32);
  kernels->elementwise().dropout(args, x, whole, {});
  for (const std::int64_t first : {0, 13}) {
    const std::int64_t width = first == 0 ? 13 : 17;
    Host part(Shape{8, width}, DType::f32), out(Shape{8, width}, DType::f32);
    for (std::int64_t i = 0; i < part.count(); ++i)
      part.set(i, x.at(i / width * 30 + first + i % width));
    args.column_offset = first;
    kernels->elementwise().dropout(args, part, out, {});
    for (std::int64_t i = 0; i < part.count(); ++i)
      ASSERT_EQ(out.at(i), whole.at(i / width * 30 + first + i % width));
  }
}

TEST_P(Elementwise, DropoutOfSomeRowsMatchesTheWhole) {
  const auto kernels = make_test_kernels();
  DropoutArgs args = dropout_args(0.5f);
  args.columns = 0;
  args.column_offset = 0;
  constexpr std::int64_t kColumns = 37;
  const Host x = Host::random(Shape{12, kColumns}, DType::f32, 1);
  Host whole(Shape{12, kColumns}, DType::f32);
  kernels->elementwise().dropout(args, x, whole, {});
  const std::vector<std::int64_t> places{1, 4, 5, 6, 11};
  const auto count = std::ssize(places);
  Host rows(Shape{count + 1}, DType::i32), some(Shape{count + 1, kColumns}, DType::f32),
      out(Shape{count + 1, kColumns}, DType::f32);
  rows.set(count, -1);  // filling
  for (std::int64_t i = 0; i < count; ++i) {
    rows.set(i, static_cast<float>(places[static_cast<std::size_t>(i)]));
    for (std::int64_t c = 0; c < kColumns; ++c)
      some.set(i * kColumns + c, x.at(places[static_cast<std::size_t>(i)] * kColumns + c));
  }
  args.rows = rows;
  kernels->elementwise().dropout(args, some, out, {});
  for (std::int64_t i = 0; i < count * kColumns; ++i)
    ASSERT_EQ(out.at(i),
              whole.at(places[static_cast<std::size_t>(i / kColumns)] * kColumns + i % kColumns))
        << i;
}

TEST_P(Elementwise, FillsAtRandom) {
  RandomSite site;
  site.seed = 99;
  site.site = 4;
  site.sample_first = 2;
  for (const std::int64_t count : {0, 1, 2, 5, 1025, 50000})
    for (const std::uint64_t first :
         {std::uint64_t{0}, std::uint64_t{3}, (std::uint64_t{1} << 34) - 6}) {
      const auto poisoned = [&] { return Hosts{Host(Shape{count}, DType::f32)}; };
      verify("fill_normal", poisoned,
             [&](Kernels& k, Hosts& out) {
               k.elementwise().fill_normal(out[0], 0.5f, 2.0f, site, first, {});
             },
             {1e-6, 2e-6});
      verify(
          "fill_uniform", poisoned,
          [&](Kernels& k, Hosts& out) {
            k.elementwise().fill_uniform(out[0], -1.5f, 0.25f, site, first, {});
          },
          kExact);
    }
}

TEST_P(Elementwise, NormalShardsAgreeAndHaveTheirMoments) {
  const auto kernels = make_test_kernels();
  RandomSite site;
  site.seed = 1;
  constexpr std::int64_t kCount = 200000;
  Host whole(Shape{kCount}, DType::f32), shard(Shape{1001}, DType::f32);
  kernels->elementwise().fill_normal(whole, 0, 1, site, 0, {});
  kernels->elementwise().fill_normal(shard, 0, 1, site, 777, {});
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < kCount; ++i) {
    sum += whole.at(i);
    squares += whole.at(i) * whole.at(i);
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  for (std::int64_t i = 0; i < 1001; ++i) ASSERT_EQ(shard.at(i), whole.at(777 + i)) << i;
}

TEST(ElementwiseErrors, NameTheShapes) {
  const auto kernels = make_test_kernels();
  Host a(Shape{2, 3}, DType::f32), b(Shape{3, 2}, DType::f32), i(Shape{2, 3}, DType::i32);
  EXPECT_EQ(error_of([&] { kernels->elementwise().add(a, b, a, {}); }),
            "add: an operand is [3, 2], expected [2, 3]");
  EXPECT_EQ(error_of([&] { kernels->elementwise().add(i, i, i, {}); }),
            "add: an operand is i32; it may be f32, bf16 or f16");
  DropoutArgs args;
  args.probability = 1;
  EXPECT_EQ(error_of([&] { kernels->elementwise().dropout(args, a, a, {}); }),
            "dropout: probability 1 is not in [0, 1)");
}

}  // namespace
}  // namespace shoal::kernels::testing
