#include "shoal/runtime/tensor/dtype.h"

#include <array>
#include <cmath>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 8> kNames{{{DType::f32, "f32"},
                                                                    {DType::bf16, "bf16"},
                                                                    {DType::f16, "f16"},
                                                                    {DType::f64, "f64"},
                                                                    {DType::i64, "i64"},
                                                                    {DType::i32, "i32"},
                                                                    {DType::u8, "u8"},
                                                                    {DType::i8, "i8"}}};

}  // namespace

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::i8:
      return 1;
  }
  SHOAL_ASSERT(false);
}

std::string_view to_string(DType dtype) {
  for (const auto& [value, name] : kNames)
    if (value == dtype) return name;
  return "?";
}

DType parse_dtype(std::string_view text) {
  for (const auto& [value, name] : kNames)
    if (name == text) return value;
  throw_error(ErrorCode::invalid_argument,
              "'{}' is not a dtype; use f32, bf16, f16, f64, i64, i32, u8 or i8", shortened(text));
}

float16::float16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: becomes quiet and keeps its payload, as in hardware
    bits = static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    bits = static_cast<std::uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal: a multiple of 2^-24
    const float scaled = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f);
    bits = static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(scaled));
  } else {
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

float16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

}  // namespace shoal
