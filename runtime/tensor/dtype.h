// Element types and the two 16-bit floats.
//
//   const DType dtype = parse_dtype("bf16");
//   std::vector<std::byte> memory(1000 * size_of(dtype));  // 1000 elements of 2 bytes
//   const bfloat16 third(1.0F / 3);                        // float(third) == 0.333984375F
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shoal {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i64, i32, u8, i8 };

std::size_t size_of(DType dtype);          // bytes
std::string_view to_string(DType dtype);   // "f32"
DType parse_dtype(std::string_view text);  // throws invalid_argument that lists the dtypes
constexpr bool is_floating(DType dtype) { return dtype <= DType::f64; }  // these come first

// bfloat16: the upper half of an f32. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;
  bfloat16() = default;
  explicit bfloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u)
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40u);
    else
      bits = static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend bool operator==(bfloat16, bfloat16) = default;
};

// IEEE binary16, for storage only: arithmetic is in f32. Rounds to nearest even, overflows to inf.
struct float16 {
  std::uint16_t bits = 0;
  float16() = default;
  explicit float16(float value);
  explicit operator float() const;
  friend bool operator==(float16, float16) = default;
};

// dtype_of<float>() == DType::f32
template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<bfloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<float16>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<std::int8_t>() {
  return DType::i8;
}

}  // namespace shoal
