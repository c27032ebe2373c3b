// Reads and writes elements of any dtype as double, for the reference kernels.
#pragma once

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal::kernels::reference {

inline double load(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::bf16:
      return static_cast<float>(static_cast<const bfloat16*>(data)[index]);
    case DType::f16:
      return static_cast<float>(static_cast<const float16*>(data)[index]);
    case DType::f64:
      return static_cast<const double*>(data)[index];
    case DType::i64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
    case DType::i32:
      return static_cast<const std::int32_t*>(data)[index];
    case DType::u8:
      return static_cast<const std::uint8_t*>(data)[index];
    case DType::i8:
      return static_cast<const std::int8_t*>(data)[index];
  }
  throw_error(ErrorCode::internal, "unknown dtype {}", static_cast<int>(dtype));
}

// Rounds once, to nearest, ties to even.
inline void store(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::bf16:
      static_cast<bfloat16*>(data)[index] = bfloat16(static_cast<float>(value));
      return;
    case DType::f16:
      static_cast<float16*>(data)[index] = float16(static_cast<float>(value));
      return;
    case DType::f64:
      static_cast<double*>(data)[index] = value;
      return;
    case DType::i64:
      static_cast<std::int64_t*>(data)[index] = static_cast<std::int64_t>(value);
      return;
    case DType::i32:
      static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(value);
      return;
    case DType::u8:
      static_cast<std::uint8_t*>(data)[index] = static_cast<std::uint8_t>(value);
      return;
    case DType::i8:
      static_cast<std::int8_t*>(data)[index] = static_cast<std::int8_t>(value);
      return;
  }
}

inline double load(const ConstView& view, std::int64_t index) {
  return load(view.data, view.dtype, index);
}
inline void store(const View& view, std::int64_t index, double value) {
  store(view.data, view.dtype, index, value);
}

}  // namespace shoal::kernels::reference
