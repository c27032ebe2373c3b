// Macros for arithmetic in kernels that also compiles for the host, where tests call it.
#pragma once

#ifdef __CUDACC__
#define SHOAL_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SHOAL_HOST_DEVICE inline
#endif
#ifdef __CUDA_ARCH__
#define SHOAL_UNROLL _Pragma("unroll")
#else
#define SHOAL_UNROLL
#endif
