// A matrix product like cuBLASLt's: column-major, with sums in f32.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::emulated_gpu {

enum class Gelu : std::uint8_t { none, forward, gradient };

// d = finish(alpha * op(a) * op(b) + beta * c) for one group; d is [m, n].
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  std::int64_t a_leading = 0, b_leading = 0, c_leading = 0, d_leading = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::f32, output = DType::f32;  // a and b; c, d, bias, aux and sums
  float alpha = 1, beta = 0;
  const void* bias = nullptr;  // one for each row of d; null: none
  Gelu gelu = Gelu::none;      // the tanh form; gradient: the product times its slope at aux
  void* aux = nullptr;         // forward: receives the input of the activation, unless null
  std::int64_t aux_leading = 0;
  void* a_sums = nullptr;   // receives the sums of op(a) over k [m]
  void* b_sums = nullptr;   // receives the sums of op(b) over k [n]
  bool rough_sums = false;  // rounds each of their partial sums to bf16
  // k is split into this many parts. Each is summed in order into its [m, n] of `partial`, and then
  // the parts are added in order.
  int parts = 1;
  float* partial = nullptr;
};
void multiply(const Product& product);

}  // namespace shoal::emulated_gpu
