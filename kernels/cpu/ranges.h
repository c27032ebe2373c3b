// SIMD loops of ElementwiseKernels, over a range of elements or rows on the calling thread. Each
// selects its instruction set at run time. Pointers are to the range's first element.
#pragma once

#include "shoal/kernels/cpu/random_bits.h"

namespace shoal::kernels {

void add_range(DType dtype, const void* a, const void* b, void* out, std::int64_t count);
void multiply_range(DType dtype, const void* a, const void* b, void* out, std::int64_t count);
void scale_range(DType dtype, const void* x, float factor, void* out, std::int64_t count);
void axpy_range(DType dtype, float alpha, const void* x, void* y, std::int64_t count);
// y += x; y is f32.
void accumulate_range(DType dtype, const void* x, float* y, std::int64_t count);
void fill_range(float value, float* out, std::int64_t count);
// `from` and `to` are f32, bf16 or f16.
void convert_range(DType from, DType to, const void* x, void* out, std::int64_t count);
void add_bias_rows(DType dtype, DType bias_dtype, const void* x, const void* bias, void* out,
                   std::int64_t rows, std::int64_t columns);
void activation_range(Activation kind, DType dtype, const void* x, void* out, std::int64_t count);
void activation_backward_range(Activation kind, DType dtype, const void* x, const void* dy,
                               void* dx, std::int64_t count);

void swiglu_range(DType dtype, const void* gate, const void* up, void* out, std::int64_t count);
void swiglu_backward_range(DType dtype, const void* gate, const void* up, const void* dout,
                           void* dgate, void* dup, std::int64_t count);
// Rotates `heads` heads of one position; `table` holds its cosines, then its sines.
struct RotaryHeadsShape {
  std::int64_t count, channels,
      turning;  // heads of a row, and of each the first `turning` channels
};
void rotary_heads(DType dtype, const void* x, const float* table, bool backward, void* out,
                  const RotaryHeadsShape& heads);

// Processes rows [first_row, first_row + rows). `x`, `residual` (null: none) and `out` point to the
// whole tensors.
void dropout_rows(DType dtype, const DropoutPlan& plan, const void* x, const void* residual,
                  void* out, std::int64_t first_row, std::int64_t rows, std::int64_t columns);
void fill_normal_range(const RandomKey& key, std::uint32_t sample, std::uint64_t first_element,
                       float mean, float std, float* out, std::int64_t count);
void fill_uniform_range(const RandomKey& key, std::uint32_t sample, std::uint64_t first_element,
                        float low, float high, float* out, std::int64_t count);

}  // namespace shoal::kernels
