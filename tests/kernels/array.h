// Arrays for kernel tests: random, poisoned, and compared with a tolerance for their dtype. Views
// of them are on the device of the next call (support/device.h).
#pragma once

#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "support/device.h"
#include <gtest/gtest.h>

#include "shoal/kernels/kernels.h"
#include "shoal/kernels/reference/access.h"

namespace shoal::kernels::testing {

using shoal::testing::At;
using shoal::testing::has_little_time;
using shoal::testing::make_test_kernels;
using shoal::testing::Mirrored;
using shoal::testing::on_cuda;
using shoal::testing::Placed;

class Array {
 public:
  Array() = default;  // undefined views
  // Fills every byte with 0xff, which is NaN in each floating dtype. `offset` elements in front
  // make the data unaligned.
  Array(Shape shape, DType dtype, std::int64_t offset = 0)
      : shape_(shape),
        dtype_(dtype),
        offset_(offset),
        bytes_(std::in_place,
               static_cast<std::size_t>(shape.count() + offset) * size_of(dtype) +
                   (shoal::testing::sanitizing() ? 0 : 64),
               std::byte{0xff}) {}

  static Array random(Shape shape, DType dtype, unsigned seed, float scale = 1,
                      std::int64_t offset = 0) {
    Array array(shape, dtype, offset);
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, scale);
    for (std::int64_t i = 0; i < shape.count(); ++i)
      array.set(i, static_cast<double>(normal(generator)));
    return array;
  }
  static Array integers(Shape shape, std::int32_t low, std::int32_t high, unsigned seed) {
    Array array(shape, DType::i32);
    std::mt19937 generator(seed);
    std::uniform_int_distribution<std::int32_t> uniform(low, high);
    for (std::int64_t i = 0; i < shape.count(); ++i) array.set(i, uniform(generator));
    return array;
  }

  void* data() const { return bytes_ ? bytes_->here() + slack() : nullptr; }
  void* host_data() const { return bytes_ ? bytes_->host() + slack() : nullptr; }
  View view() const {
    return bytes_ ? View{data(), shape_, dtype_, shoal::testing::here()} : View{};
  }
  operator View() const { return view(); }       // NOLINT
  operator ConstView() const { return view(); }  // NOLINT
  double at(std::int64_t i) const { return reference::load(host_data(), dtype_, i); }
  void set(std::int64_t i, double value) { reference::store(host_data(), dtype_, i, value); }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  std::int64_t count() const { return shape_.count(); }
  bool same_bytes(const Array& other) const {
    return std::memcmp(host_data(), other.host_data(),
                       static_cast<std::size_t>(count()) * size_of(dtype_)) == 0;
  }

 private:
  std::size_t slack() const { return static_cast<std::size_t>(offset_) * size_of(dtype_); }

  Shape shape_;
  DType dtype_ = DType::f32;
  std::int64_t offset_ = 0;
  std::optional<Mirrored> bytes_;
};

// The relative rounding error of a dtype.
inline double epsilon(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-23;
}

// True if |actual - expected| <= tolerance · (|expected| + scale) everywhere. NaN never passes.
inline ::testing::AssertionResult close(const Array& actual, const Array& expected,
                                        double tolerance, double scale = 1) {
  if (!(actual.shape() == expected.shape()))
    return ::testing::AssertionFailure() << "shapes differ";
  for (std::int64_t i = 0; i < expected.count(); ++i) {
    const double a = actual.at(i), e = expected.at(i);
    if (a == e) continue;  // also true for equal infinities
    if (!(std::abs(a - e) <= tolerance * (std::abs(e) + scale)))
      return ::testing::AssertionFailure()
             << to_string(expected.shape()) << " " << to_string(actual.dtype()) << " element " << i
             << ": " << a << ", not " << e << " (tolerance " << tolerance * (std::abs(e) + scale)
             << ")";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace shoal::kernels::testing
