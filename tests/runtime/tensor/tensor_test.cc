// Dtypes (all bit patterns), shapes, storages and tensors.
#include "shoal/runtime/tensor/tensor.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

// The value of a 16-bit float by its definition, in double.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1)
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <typename Half, int kExponent, int kMantissa>
void check_all_patterns() {
  constexpr std::uint16_t kQuiet = 1 << (kMantissa - 1);
  for (std::uint32_t pattern = 0; pattern < 65536; ++pattern) {
    Half half;
    half.bits = static_cast<std::uint16_t>(pattern);
    const double want = value_of(half.bits, kExponent, kMantissa);
    const auto widened = static_cast<float>(half);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(widened)) << pattern;
      // Payload and sign are kept. A signalling NaN becomes quiet.
      ASSERT_EQ(Half(widened).bits, half.bits | kQuiet) << pattern;
    } else {
      ASSERT_EQ(static_cast<double>(widened), want) << pattern;
      ASSERT_EQ(std::signbit(widened), std::signbit(want)) << pattern;
      ASSERT_EQ(Half(widened).bits, half.bits) << pattern;
    }
  }
}

TEST(DTypes, EveryBfloat16PatternRoundTrips) { check_all_patterns<bfloat16, 8, 7>(); }
TEST(DTypes, EveryFloat16PatternRoundTrips) { check_all_patterns<float16, 5, 10>(); }

// Tests below, at (ties to even) and above the middle of each pair of neighbours.
template <typename Half>
void check_rounding(std::uint16_t infinity) {
  for (std::uint16_t low = 0; low + 1 < infinity; ++low) {
    Half a, b;
    a.bits = low;
    b.bits = static_cast<std::uint16_t>(low + 1);
    // Exact in double. The middle is also exact in float, because it has one bit more than a
    // neighbour.
    const auto middle = static_cast<float>((static_cast<double>(float(a)) + float(b)) / 2);
    const std::uint16_t even = low % 2 ? b.bits : a.bits;
    ASSERT_EQ(Half(middle).bits, even) << low;
    ASSERT_EQ(Half(std::nextafter(middle, 0.0f)).bits, a.bits) << low;
    ASSERT_EQ(Half(std::nextafter(middle, INFINITY)).bits, b.bits) << low;
    ASSERT_EQ(Half(-middle).bits, even | 0x8000) << low;
  }
}

TEST(DTypes, Bfloat16RoundsToNearestEven) { check_rounding<bfloat16>(0x7f80); }
TEST(DTypes, Float16RoundsToNearestEven) { check_rounding<float16>(0x7c00); }

TEST(DTypes, OverflowToInfinityAndUnderflowToZero) {
  EXPECT_EQ(float16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(float16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(float16(std::ldexp(1.0f, -25)).bits, 0) << "half of the smallest value ties to even";
  EXPECT_EQ(float16(std::nextafter(std::ldexp(1.0f, -25), 1.0f)).bits, 1);
  EXPECT_EQ(float16(std::numeric_limits<float>::denorm_min()).bits, 0);
  EXPECT_EQ(float16(-0.0f).bits, 0x8000);
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::denorm_min()).bits, 0);
  // A NaN whose payload is in the lost half must not become infinity.
  EXPECT_TRUE(std::isnan(float(bfloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(float(float16(std::bit_cast<float>(0xff800001u)))));
}

TEST(DTypes, HaveNamesAndSizes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::i32,
                            DType::u8, DType::i8})
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  EXPECT_EQ(size_of(DType::f64), 8u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_TRUE(is_floating(DType::f64));
  EXPECT_FALSE(is_floating(DType::i64));
  try {
    (void)parse_dtype("float");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'float' is not a dtype; use f32"));
  }
}

TEST(Shapes, HaveCountsAndStrides) {
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ((Shape{2, 0, 3}).count(), 0);
  EXPECT_EQ((Shape{2, 3, 4}).rows(), 6);
  EXPECT_EQ((Shape{2, 3, 4}).columns(), 4);
  EXPECT_EQ(Shape{}.rows() * Shape{}.columns(), 1);
  EXPECT_EQ((Shape{5}).rows(), 1);
  EXPECT_EQ((Shape{2, 3, 4})[-1], 4);
  EXPECT_EQ(to_string(Shape{4, 512}), "[4, 512]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ((Shape{2, 3}).with(-1, 7), (Shape{2, 7}));
  EXPECT_NE((Shape{2, 1}), (Shape{2}));
}

TEST(Shapes, RefuseInvalidSizes) {
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), Error);
  EXPECT_THROW((Shape{2, -1}), Error);
  EXPECT_THROW((void)(Shape{2, 3})[2], Error);
  EXPECT_THROW((void)(Shape{2, 3})[-3], Error);
  EXPECT_THROW((void)Shape{}[0], Error);
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_THROW((void)(Shape{kHuge, kHuge}).count(), Error);
  EXPECT_THROW((void)(Shape{kHuge, kHuge, 2}).rows(), Error);
  EXPECT_EQ((Shape{kHuge, kHuge, 0}).count(), 0) << "an empty shape cannot overflow";
  (void)contiguous_strides({0, kHuge, kHuge, kHuge});
}

class Tensors : public ::testing::Test {
 protected:
  Tensor iota(const Shape& shape) {
    Tensor tensor = Tensor::empty(shape, DType::f32, counting, MemoryTag::data);
    std::iota(tensor.data<float>(), tensor.data<float>() + tensor.count(), 0.0f);
    return tensor;
  }
  std::unique_ptr<MemoryResource> host = make_host_memory();
  CountingMemory counting{*host};
};

TEST_F(Tensors, SupportEmptyZerosAndTypedAccess) {
  const Tensor zeros = Tensor::zeros({3, 5}, DType::i32, counting, MemoryTag::data);
  EXPECT_EQ(zeros.bytes(), 60u);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(zeros.const_data<std::int32_t>()[i], 0);
  EXPECT_THROW((void)zeros.data<float>(), Error);
  const Tensor none = Tensor::zeros({0, 5}, DType::f32, counting, MemoryTag::data);
  EXPECT_EQ(none.count(), 0);
  EXPECT_TRUE(none.is_contiguous());
  EXPECT_NO_THROW((void)none.view());
  EXPECT_TRUE(Tensor::zeros({2, 0, 3}, DType::f32, counting, MemoryTag::data).is_contiguous());
  EXPECT_FALSE(Tensor().defined());
  EXPECT_THROW((void)Tensor().view(), Error);
}

TEST_F(Tensors, HugeSizesThrowBeforeTheyAllocate) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 31;
  EXPECT_THROW((void)Tensor::empty({kHuge, kHuge, 4}, DType::u8, counting, MemoryTag::data), Error);
  // 2^62 elements are a valid count, but more than 2^64 bytes are not. The size must not wrap
  // around.
  EXPECT_THROW((void)Tensor::empty({kHuge, kHuge}, DType::f64, counting, MemoryTag::data), Error);
  EXPECT_EQ(counting.allocations(), 0);
  const auto storage = std::make_shared<Storage>(Buffer(counting, 64, MemoryTag::data));
  EXPECT_THROW((void)Tensor::over(storage, 0, {kHuge, kHuge}, DType::f32), Error);
}

TEST_F(Tensors, ViewsShareTheStorage) {
  Tensor whole = iota({4, 3});
  const Tensor rows = whole.narrowed(0, 1, 2);
  EXPECT_TRUE(rows.is_contiguous());
  EXPECT_EQ(rows.const_data<float>()[0], 3);
  rows.data<float>()[0] = 99;
  EXPECT_EQ(whole.const_data<float>()[3], 99);
  EXPECT_EQ(rows.reshaped({6}).const_data<float>()[5], 8);
  EXPECT_EQ(rows.narrowed(0, 1, 1).offset(), 6);
  EXPECT_EQ(whole.narrowed(-1, 1, 2).strides(), (Shape{3, 1}));
  EXPECT_EQ(whole.narrowed(0, 4, 0).count(), 0);
  EXPECT_THROW((void)whole.narrowed(0, 3, 2), Error);
  EXPECT_THROW((void)whole.narrowed(0, -1, 2), Error);
  EXPECT_THROW((void)whole.narrowed(0, 1, INT64_MAX), Error);
  EXPECT_THROW((void)whole.narrowed(2, 0, 1), Error);
}

TEST_F(Tensors, NonContiguousViewsAreRefusedByKernels) {
  const Tensor t = iota({2, 3}).transposed(0, -1);
  EXPECT_EQ(t.shape(), (Shape{3, 2}));
  EXPECT_EQ(t.strides(), (Shape{1, 3}));
  EXPECT_FALSE(t.is_contiguous());
  try {
    (void)t.const_view();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[3, 2] with strides [1, 3]"));
  }
  EXPECT_THROW((void)t.reshaped({6}), Error);
  EXPECT_TRUE(t.transposed(0, 1).is_contiguous());
  EXPECT_TRUE(iota({1, 5}).transposed(0, 1).is_contiguous())
      << "strides of size-1 axes do not matter";
  EXPECT_FALSE(iota({4, 3}).narrowed(1, 0, 2).is_contiguous());
  EXPECT_THROW((void)iota({4, 3}).reshaped({5}), Error);
}

TEST_F(Tensors, ConstructorChecksBoundsAndAlignment) {
  const auto storage = std::make_shared<Storage>(Buffer(counting, 64, MemoryTag::data));
  EXPECT_EQ(Tensor::over(storage, 32, {8}, DType::f32).offset(), 8);
  EXPECT_THROW((void)Tensor::over(storage, 2, {1}, DType::f32), Error);
  EXPECT_THROW((void)Tensor::over(storage, 36, {8}, DType::f32), Error);
  EXPECT_THROW((void)Tensor::over(storage, 68, {0}, DType::f32), Error);
  EXPECT_NO_THROW((void)Tensor::over(storage, 64, {0}, DType::f32));
  // For strided tensors the last element decides, not the sizes.
  EXPECT_NO_THROW(Tensor(storage, 0, {2, 2}, {8, 7}, DType::f32));
  EXPECT_THROW(Tensor(storage, 0, {2, 2}, {8, 8}, DType::f32), Error);
  EXPECT_THROW(Tensor(storage, -1, {1}, {1}, DType::f32), Error);
  EXPECT_THROW(Tensor(storage, 0, {3}, {INT64_MAX}, DType::f32), Error);
  EXPECT_THROW(Tensor(storage, 0, {2}, {1, 1}, DType::f32), Error);
  EXPECT_THROW(Tensor(nullptr, 0, {2}, {1}, DType::f32), Error);
}

TEST_F(Tensors, StorageIsReleasedAndRematerialisedBeneathItsViews) {
  Tensor whole = iota({8});
  const Tensor half = whole.narrowed(0, 4, 4);
  EXPECT_EQ(counting.total().current, 32);
  whole.storage()->release();
  EXPECT_EQ(counting.total().current, 0) << "the bytes are freed";
  EXPECT_TRUE(half.storage()->released());
  EXPECT_EQ(half.storage()->size(), 32u) << "the size is remembered";
  try {
    (void)half.const_view();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("released storage of 32 bytes"));
  }
  EXPECT_THROW(whole.storage()->rematerialise(Buffer(counting, 16, MemoryTag::data)), Error);
  Buffer fresh(counting, 32, MemoryTag::parameters);
  static_cast<float*>(fresh.data())[5] = 42;
  whole.storage()->rematerialise(std::move(fresh));
  EXPECT_EQ(half.const_data<float>()[1], 42) << "views see the new bytes";
}

TEST_F(Tensors, WritesBumpTheVersionAndReadsDoNot) {
  const Tensor t = iota({2});
  const Tensor alias = t.reshaped({2, 1});
  const auto before = t.storage()->version();
  (void)t.const_view();
  (void)t.const_data<float>();
  EXPECT_EQ(t.storage()->version(), before);
  (void)alias.view();
  EXPECT_EQ(t.storage()->version(), before + 1) << "a write through any view counts";
}

TEST_F(Tensors, ForeignMemoryIsKeptAliveAndStaysReadOnly) {
  auto keeper = std::make_shared<std::vector<float>>(4, 1.5f);
  const std::weak_ptr<void> watch = keeper;
  const void* data = keeper->data();
  Tensor t = Tensor::over(Storage::read_only(data, 16, Device::cpu(), std::move(keeper)), 0, {4},
                          DType::f32);
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(t.const_data<float>()[3], 1.5f);
  EXPECT_THROW((void)t.view(), Error);
  t.storage()->release();
  EXPECT_TRUE(watch.expired()) << "releasing drops the keeper";
  t.storage()->rematerialise(Buffer(counting, 16, MemoryTag::data));
  EXPECT_NO_THROW((void)t.view()) << "rematerialised bytes may be written";
}

}  // namespace
}  // namespace shoal
