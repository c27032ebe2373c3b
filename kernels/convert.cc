#include "shoal/kernels/convert.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "shoal/kernels/with_type.h"

namespace shoal::kernels {
namespace {

template <class T>
constexpr bool is_half = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_half<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (is_half<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    using Limits = std::numeric_limits<To>;
    // max() + 1 is a power of two and therefore exact in any float; max() may not be.
    constexpr To kHalfEnd = Limits::max() / 2 + 1;
    constexpr From kEnd = static_cast<From>(kHalfEnd) * 2;
    if (std::isnan(value)) return 0;
    if (value >= kEnd) return Limits::max();
    if (value <= static_cast<From>(Limits::min())) return Limits::min();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace

void convert_elements(DType from, const void* x, DType to, void* out, std::int64_t count) {
  with_type(from, [&](auto from_type) {
    with_type(to, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      const auto* source = static_cast<const From*>(x);
      auto* destination = static_cast<To*>(out);
      for (std::int64_t i = 0; i < count; ++i) destination[i] = convert<To>(source[i]);
    });
  });
}

}  // namespace shoal::kernels
