// A matrix product as cuBLASLt's: column-major, sums in f32.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::emulated_gpu {

enum class Gelu : std::uint8_t { none, forward, gradient };

// d = finish(alpha * op(a) * op(b) + beta * c), d of [m, n]. One group.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  std::int64_t a_leading = 0, b_leading = 0, c_leading = 0, d_leading = 0;
  bool transpose_a = false, transpose_b = false;
  DType input = DType::f32, output = DType::f32;  // of a and b; of c, d, bias, aux and sums
  float alpha = 1, beta = 0;
  const void* bias = nullptr;  // one for each row of d; null: none
  Gelu gelu = Gelu::none;      // the tanh form; gradient: the product times its slope at aux
  void* aux = nullptr;         // forward: receives what the activation is given; null: does not
  std::int64_t aux_leading = 0;
  void* a_sums = nullptr;   // receives the sums over k of op(a) [m]
  void* b_sums = nullptr;   // of op(b) [n]
  bool rough_sums = false;  // each partial sum of them is rounded to bf16
  // In so many parts of k, each summed in order into its [m, n] of `partial`, and these in order.
  int parts = 1;
  float* partial = nullptr;
};
void multiply(const Product& product);

}  // namespace shoal::emulated_gpu
