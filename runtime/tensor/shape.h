// Sizes of a tensor: at most six dimensions, stored inline.
//
//   const Shape shape{4, 512, 768};
//   const std::int64_t channels = shape[-1], rows = shape.rows();  // 768, 4·512
//   const Shape half = shape.with(0, 2);                           // [2, 512, 768]
//
// All errors are invalid_argument: a negative size, more than six dimensions, a dim out of range, a
// product that overflows.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace shoal {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;  // rank 0: a scalar
  Shape(std::initializer_list<std::int64_t> sizes);
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const { return rank_; }
  std::int64_t operator[](int dim) const;  // negative dims count from the end
  std::int64_t count() const;              // number of elements; 1 for a scalar
  std::span<const std::int64_t> sizes() const {
    return {sizes_.data(), static_cast<std::size_t>(rank_)};
  }
  // rows(): product of all dimensions but the last. columns(): the last dimension. Kernels treat
  // [.., N] as [rows, N].
  std::int64_t rows() const;
  std::int64_t columns() const;

  Shape with(int dim, std::int64_t size) const;
  friend bool operator==(const Shape& a, const Shape& b) {
    return a.rank_ == b.rank_ && a.sizes_ == b.sizes_;
  }

 private:
  int rank_ = 0;
  std::array<std::int64_t, kMaxRank> sizes_{};
};

std::string to_string(const Shape& shape);  // "[4, 512, 768]"

// Row-major strides, in elements.
Shape contiguous_strides(const Shape& shape);

}  // namespace shoal
