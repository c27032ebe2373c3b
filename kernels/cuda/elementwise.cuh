// Launchers of elementwise.cu. Pointers are to device memory, aligned to their elements; counts may
// be 0. Outputs may alias inputs.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/launch.cuh"
#include "shoal/kernels/cuda/philox.cuh"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// out = alpha * a + b
cudaError_t launch_axpy(Launch at, DType dtype, float alpha, const void* a, const void* b,
                        void* out, std::int64_t count);
cudaError_t launch_multiply(Launch at, DType dtype, const void* a, const void* b, void* out,
                            std::int64_t count);
// out = factor * x; both dtypes are f32, bf16 or f16.
cudaError_t launch_scale(Launch at, DType from, DType to, float factor, const void* x, void* out,
                         std::int64_t count);
// Converts between any dtypes, one element per thread, for dtypes that launch_scale does not take.
cudaError_t launch_convert(Launch at, DType from, DType to, const void* x, void* out,
                           std::int64_t count);
cudaError_t launch_fill(Launch at, DType dtype, float value, void* out, std::int64_t count);
enum class Curve { gelu_tanh, gelu_erf, tanh, relu };
cudaError_t launch_activation(Launch at, Curve curve, DType dtype, const void* x, void* out,
                              std::int64_t count);
cudaError_t launch_activation_backward(Launch at, Curve curve, DType dtype, const void* x,
                                       const void* dy, void* dx, std::int64_t count);

cudaError_t launch_swiglu(Launch at, DType dtype, const void* gate, const void* up, void* out,
                          std::int64_t count);
// dgate may alias gate, and dup may alias up.
cudaError_t launch_swiglu_backward(Launch at, DType dtype, const void* gate, const void* up,
                                   const void* dout, void* dgate, void* dup, std::int64_t count);

// `bias_dtype`: f32 or dtype.
cudaError_t launch_add_bias(Launch at, DType dtype, DType bias_dtype, const void* x,
                            const void* bias, void* out, std::int64_t rows, std::int64_t columns);
// `residual` may be null.
cudaError_t launch_dropout(Launch at, DType dtype, const RowDropout& dropout, const void* x,
                           const void* residual, void* out, std::int64_t rows,
                           std::int64_t columns);
// Elements of 1, 2, 4 or 8 bytes; not in place.
cudaError_t launch_transpose(Launch at, std::size_t element_bytes, const void* x, void* out,
                             std::int64_t matrices, std::int64_t rows, std::int64_t columns);
// mean + std * normal, or low + width * uniform.
cudaError_t launch_fill_normal(Launch at, const RandomSite& site, std::uint64_t first_element,
                               float mean, float std, float* out, std::int64_t count);
cudaError_t launch_fill_uniform(Launch at, const RandomSite& site, std::uint64_t first_element,
                                float low, float width, float* out, std::int64_t count);

}  // namespace shoal::kernels
