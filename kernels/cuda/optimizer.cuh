// Launchers of optimizer.cu: plain structs, so that nvcc reads few of our headers.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/fault.cuh"
#include "shoal/kernels/loss_scale.h"
#include "shoal/kernels/rounding.h"
#include "shoal/kernels/step_numbers.h"
#include "shoal/kernels/step_state.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

// Tensors are split into chunks that blocks take in turn; first_chunk is the number of chunks of
// earlier tensors. Descriptors are kernel parameters: nothing is uploaded, and a captured launch
// keeps its own copy.
inline constexpr std::int64_t kAdamWChunk = 4096;
inline constexpr std::int64_t kLambChunk = 8192;
inline constexpr std::int64_t kSquaresChunk = 8192;

struct AdamWTensor {
  float *master, *first_moment, *second_moment;
  const float* gradient;
  void* parameter;  // null: the master is the parameter
  std::int64_t count;
  double weight_decay;
  std::uint32_t first_chunk;
  DType copy;          // of `parameter`
  std::uint8_t whole;  // every pointer is aligned for accesses of four elements
};

// A bf16 parameter without a master: only `parameter` is used, `master` is null.
struct RoundedTensor : AdamWTensor {
  RoundingPlace place;
};

// The settings are f64. The device computes the factors from them, since the step number is in
// device memory.
struct AdamWSettings {
  const StepState* state;
  double beta1, beta2, epsilon;
  FaultRecord* fault;
};

template <class Tensor_, int capacity>
struct UpdateTable {
  using Tensor = Tensor_;
  AdamWSettings settings;
  std::uint32_t tensors, chunks;
  Tensor tensor[capacity];
};
inline constexpr int kFewTensors = 48, kManyTensors = 480;
inline constexpr int kFewRounded = 28, kManyRounded = 240;
using FewTensors = UpdateTable<AdamWTensor, kFewTensors>;
using ManyTensors = UpdateTable<AdamWTensor, kManyTensors>;
using FewRounded = UpdateTable<RoundedTensor, kFewRounded>;
using ManyRounded = UpdateTable<RoundedTensor, kManyRounded>;
// Launch parameters are limited to 32764 bytes (CUDA 12.1; 4096 before).
static_assert(sizeof(ManyTensors) <= 32764 && sizeof(ManyRounded) <= 32764 &&
              sizeof(FewTensors) <= 4096 && sizeof(FewRounded) <= 4096);

// Instantiated for each of the four tables.
template <class Table>
cudaError_t launch_adamw(const Table& table, int multiprocessors, cudaStream_t stream);

template <class Table>
cudaError_t launch_lion(const Table& table, int multiprocessors, cudaStream_t stream);

struct SgdTensor {
  float *master, *momentum_buffer;  // momentum_buffer null: no momentum
  const float* gradient;
  void* parameter;
  std::int64_t count;
  DType copy;
  bool whole, nesterov;
  float momentum, one_minus_dampening, weight_decay;
  const StepState* state;
  FaultRecord* fault;
};
cudaError_t launch_sgd(const SgdTensor& args, int multiprocessors, cudaStream_t stream);

// Updates LAMB's moments and writes partial [chunks, 2]: sums of squares of the masters and of r
// (optimizer.h) per chunk of kLambChunk.
template <class Table>
cudaError_t launch_lamb_moments(const Table& table, double* partial, int multiprocessors,
                                cudaStream_t stream);
// squares [tensors, 2] = the sums over each tensor's chunks, in order.
template <class Table>
cudaError_t launch_lamb_squares(const Table& table, const double* partial, double* squares,
                                cudaStream_t stream);
// master -= learning rate * trust * r; also refreshes the copy.
template <class Table>
cudaError_t launch_lamb_apply(const Table& table, const double* squares, double max_trust_ratio,
                              int multiprocessors, cudaStream_t stream);

struct SquaresTensor {
  const void* data;
  std::int64_t count;
  std::uint32_t first_chunk;
  DType type;
  std::uint8_t whole;
};
inline constexpr int kFewSquares = 128, kManySquares = 1280;
template <int capacity>
struct SquaresTable {
  std::uint32_t tensors, chunks;
  SquaresTensor tensor[capacity];
};
static_assert(sizeof(SquaresTable<kManySquares>) <= 32000 &&
              sizeof(SquaresTable<kFewSquares>) <= 4000);

// Upper limit on the sums of one table, independent of the device, so that the order of addition is
// always the same.
inline constexpr int kSquaresSums = 1024;
inline int squares_blocks(std::uint32_t chunks) {
  return chunks < kSquaresSums ? static_cast<int>(chunks) : kSquaresSums;
}
// partial [squares_blocks(chunks)]: entry i sums the squares of every squares_blocks(chunks)-th
// chunk.
template <int capacity>
cudaError_t launch_squares(const SquaresTable<capacity>& table, double* partial,
                           cudaStream_t stream);
// out[0] (+)= sum of partial [count]
cudaError_t launch_squares_total(const double* partial, int count, double* out, bool accumulate,
                                 cudaStream_t stream);

// found[0] = 1 if any element is inf or NaN; otherwise unchanged.
cudaError_t launch_non_finite(const SquaresTensor& tensor, std::uint32_t* found,
                              int multiprocessors, cudaStream_t stream);

cudaError_t launch_set_step(StepState* state, const StepNumbers& numbers, cudaStream_t stream);
cudaError_t launch_begin_update(const double* sum_of_squares, double max_norm, double* norm,
                                StepState* state, const LossScaleRule& scaling,
                                cudaStream_t stream);

}  // namespace shoal::kernels
