// Dispatch from a dtype to its C++ type.
#pragma once

#include <cstdint>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// Calls f(T{}) with the type T of `dtype`: with_type(dtype, [&](auto type) { using T =
// decltype(type); });
template <class F>
void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bfloat16{});
    case DType::f16:
      return f(float16{});
    case DType::f64:
      return f(double{});
    case DType::i64:
      return f(std::int64_t{});
    case DType::i32:
      return f(std::int32_t{});
    case DType::u8:
      return f(std::uint8_t{});
    case DType::i8:
      return f(std::int8_t{});
  }
  SHOAL_ASSERT(false);
}

}  // namespace shoal::kernels
