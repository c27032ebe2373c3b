// Owned host arrays for kernel tests: random, poisoned, compared with a tolerance of their dtype.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "shoal/kernels/kernels.h"
#include "shoal/kernels/reference/access.h"

namespace shoal::kernels::testing {

class Array {
 public:
  Array() = default;  // undefined views
  // Poisoned: every byte 0xff, which is NaN in each floating dtype. `offset` elements of slack in
  // front take the data off its alignment.
  Array(Shape shape, DType dtype, std::int64_t offset = 0)
      : shape_(shape),
        dtype_(dtype),
        offset_(offset),
        bytes_(static_cast<std::size_t>(shape.count() + offset) * size_of(dtype) + 64, 0xff) {}

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

  void* data() const {
    if (bytes_.empty()) return nullptr;
    // Aligned to 64 bytes before the offset.
    auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    address = (address + 63) / 64 * 64;
    return reinterpret_cast<void*>(address + static_cast<std::size_t>(offset_) * size_of(dtype_));
  }
  View view() const {
    return bytes_.empty() ? View{} : View{data(), shape_, dtype_, Device::cpu()};
  }
  operator View() const { return view(); }       // NOLINT
  operator ConstView() const { return view(); }  // NOLINT
  double at(std::int64_t i) const { return reference::load(data(), dtype_, i); }
  void set(std::int64_t i, double value) { reference::store(data(), dtype_, i, value); }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  std::int64_t count() const { return shape_.count(); }
  bool same_bytes(const Array& other) const {
    return std::memcmp(data(), other.data(), static_cast<std::size_t>(count()) * size_of(dtype_)) ==
           0;
  }

 private:
  Shape shape_;
  DType dtype_ = DType::f32;
  std::int64_t offset_ = 0;
  std::vector<std::uint8_t> bytes_;
};

// Relative rounding of a dtype.
inline double epsilon(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-23;
}

// |actual - expected| <= tolerance · (|expected| + scale) everywhere; NaN never passes.
inline ::testing::AssertionResult close(const Array& actual, const Array& expected,
                                        double tolerance, double scale = 1) {
  if (!(actual.shape() == expected.shape()))
    return ::testing::AssertionFailure() << "shapes differ";
  for (std::int64_t i = 0; i < expected.count(); ++i) {
    const double a = actual.at(i), e = expected.at(i);
    if (a == e) continue;  // infinities
    if (!(std::abs(a - e) <= tolerance * (std::abs(e) + scale)))
      return ::testing::AssertionFailure()
             << to_string(expected.shape()) << " " << to_string(actual.dtype()) << " element " << i
             << ": " << a << ", not " << e << " (tolerance " << tolerance * (std::abs(e) + scale)
             << ")";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace shoal::kernels::testing
