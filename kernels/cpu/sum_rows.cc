#include "shoal/kernels/cpu/sum_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/sum_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shoal/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

// Keeps four vectors of column sums in registers while iterating over the rows.
template <typename T>
void SumOfRows(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t stride,
               float* sums) {
  const std::int64_t lanes = FloatLanes();
  std::int64_t j = 0;
  for (; j + 4 * lanes <= columns; j += 4 * lanes) {
    FloatVec s0 = hn::Zero(kFloat), s1 = s0, s2 = s0, s3 = s0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const T* row = x + i * stride + j;
      s0 = hn::Add(s0, LoadFloats(row));
      s1 = hn::Add(s1, LoadFloats(row + lanes));
      s2 = hn::Add(s2, LoadFloats(row + 2 * lanes));
      s3 = hn::Add(s3, LoadFloats(row + 3 * lanes));
    }
    StoreFloats(s0, sums + j);
    StoreFloats(s1, sums + j + lanes);
    StoreFloats(s2, sums + j + 2 * lanes);
    StoreFloats(s3, sums + j + 3 * lanes);
  }
  for (; j < columns; j += lanes) {
    const std::int64_t some = HWY_MIN(lanes, columns - j);
    FloatVec sum = hn::Zero(kFloat);
    for (std::int64_t i = 0; i < rows; ++i)
      sum = hn::Add(sum, LoadSomeFloats(x + i * stride + j, some));
    StoreSomeFloats(sum, sums + j, some);
  }
}

void SumOfRowsF32(const float* x, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                  float* sums) {
  SumOfRows(x, rows, columns, stride, sums);
}
void SumOfRowsBF16(const bfloat16* x, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                   float* sums) {
  SumOfRows(x, rows, columns, stride, sums);
}
void SumOfRowsF16(const float16* x, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                  float* sums) {
  SumOfRows(x, rows, columns, stride, sums);
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {

HWY_EXPORT(SumOfRowsF32);
HWY_EXPORT(SumOfRowsBF16);
HWY_EXPORT(SumOfRowsF16);

void sum_of_rows(const void* x, DType dtype, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, float* sums) {
  switch (dtype) {
    case DType::f32:
      HWY_DYNAMIC_DISPATCH(SumOfRowsF32)
      (static_cast<const float*>(x), rows, columns, stride, sums);
      return;
    case DType::bf16:
      HWY_DYNAMIC_DISPATCH(SumOfRowsBF16)
      (static_cast<const bfloat16*>(x), rows, columns, stride, sums);
      return;
    default:
      HWY_DYNAMIC_DISPATCH(SumOfRowsF16)
      (static_cast<const float16*>(x), rows, columns, stride, sums);
  }
}

}  // namespace shoal::kernels
#endif
