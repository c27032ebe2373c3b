#include "shoal/runtime/tensor/shape.h"

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"

namespace shoal {

Shape::Shape(std::initializer_list<std::int64_t> sizes)
    : Shape(std::span<const std::int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const std::int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  SHOAL_CHECK(sizes.size() <= kMaxRank, "a tensor has at most {} dimensions, not {}", kMaxRank,
              sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    SHOAL_CHECK(sizes[i] >= 0, "dimension {} has negative size {}", i, sizes[i]);
    sizes_[i] = sizes[i];
  }
}

std::int64_t Shape::operator[](int dim) const {
  const int index = dim < 0 ? dim + rank_ : dim;
  SHOAL_CHECK(index >= 0 && index < rank_, "dimension {} of a tensor of rank {}", dim, rank_);
  return sizes_[static_cast<std::size_t>(index)];
}

namespace {

// Returns 0 if any size is 0, so that the sizes of an empty tensor cannot overflow.
std::int64_t product_of(std::span<const std::int64_t> sizes, const Shape& shape) {
  for (const std::int64_t size : sizes)
    if (size == 0) return 0;
  std::int64_t product = 1;
  for (const std::int64_t size : sizes)
    SHOAL_CHECK(!__builtin_mul_overflow(product, size, &product), "shape {} overflows",
                to_string(shape));
  return product;
}

}  // namespace

std::int64_t Shape::count() const { return product_of(sizes(), *this); }

std::int64_t Shape::columns() const { return rank_ == 0 ? 1 : (*this)[-1]; }

std::int64_t Shape::rows() const {
  return rank_ == 0 ? 1 : product_of(sizes().first(sizes().size() - 1), *this);
}

Shape Shape::with(int dim, std::int64_t size) const {
  (void)(*this)[dim];
  Shape copy = *this;
  copy.sizes_[static_cast<std::size_t>(dim < 0 ? dim + rank_ : dim)] = size;
  return copy;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.sizes(), ", "));
}

Shape contiguous_strides(const Shape& shape) {
  std::array<std::int64_t, Shape::kMaxRank> strides{};
  std::int64_t stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    strides[static_cast<std::size_t>(dim)] = stride;
    // An empty tensor's strides are never used, but computing them must not overflow.
    const std::int64_t size = shape[dim] == 0 ? 1 : shape[dim];
    if (__builtin_mul_overflow(stride, size, &stride)) stride = 0;
  }
  return Shape(
      std::span<const std::int64_t>(strides.data(), static_cast<std::size_t>(shape.rank())));
}

}  // namespace shoal
