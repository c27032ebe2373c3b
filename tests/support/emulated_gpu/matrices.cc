// A warp's matrix instructions.
#include <cstring>

#include "support/emulated_gpu/sanitizer.h"
#include "support/emulated_gpu/stream.h"

#include "shoal/kernels/cuda/instructions.cuh"

namespace shoal::kernels::emulated {
namespace {

using emulated_gpu::Lanes;

// ldmatrix: lane l gives the address of row l % 8 of matrix l / 8. Of each matrix, lane l receives
// element (l / 4, 2 (l % 4)) and the next one in the row. If transposed, it receives element (2 (l
// % 4), l / 4) and the next one in the column.
void load(Lanes lanes, bool transposed) {
  std::uint16_t matrix[4][8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const void* const row = static_cast<const MatrixRow*>(lanes[lane])->row;
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
      emulated_gpu::fail(emulated_gpu::position() +
                         ": ldmatrix of a row that is not aligned to 16 bytes");
    std::memcpy(matrix[lane / 8][lane % 8], row, 16);
  }
  for (int lane = 0; lane < 32; ++lane) {
    std::uint32_t* const m = static_cast<MatrixRow*>(lanes[lane])->m;
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const auto& from = matrix[i];
      const std::uint32_t low = transposed ? from[pair][group] : from[group][pair],
                          high = transposed ? from[pair + 1][group] : from[group][pair + 1];
      m[i] = low | high << 16;
    }
  }
}

float widened(std::uint32_t bits, __nv_bfloat16) { return std::bit_cast<float>(bits << 16); }
float widened(std::uint32_t bits, __half) {
  return __half2float({static_cast<std::uint16_t>(bits)});
}

// sum [16, 8] = a [16, 16] · b [16, 8], in the caller's arrays. Attention tests spend most of their
// time here.
SHOAL_MAY_TOUCH_ANYTHING __attribute__((target_clones("arch=x86-64-v3", "default"))) void product(
    const double (&a)[16][16], const double (&b)[16][8], double (&sum)[16][8]) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) sum[row][column] = 0;
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sum[row][column] += a[row][k] * b[k][column];
  }
}

// c [16, 8] += a [16, 16] · b [16, 8]. Products are exact. They are summed with c in f64 and
// rounded once, which is slightly more exact than the hardware.
template <typename T>
void multiply(Lanes lanes) {
  double a[16][16], b[16][8], sum[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& part = *static_cast<const Product*>(lanes[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      double* const to = &a[group + 8 * (i % 2)][pair + 8 * (i / 2)];
      to[0] = widened(part.a[i] & 0xffffu, T{});
      to[1] = widened(part.a[i] >> 16, T{});
    }
    for (int i = 0; i < 2; ++i) {
      b[pair + 8 * i][group] = widened(part.b[i] & 0xffffu, T{});
      b[pair + 8 * i + 1][group] = widened(part.b[i] >> 16, T{});
    }
  }
  product(a, b, sum);
  for (int lane = 0; lane < 32; ++lane) {
    float* const c = static_cast<Product*>(lanes[lane])->c;
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int e = 0; e < 4; ++e)
      c[e] = static_cast<float>(static_cast<double>(c[e]) + sum[group + 8 * (e / 2)][pair + e % 2]);
  }
}

}  // namespace

void load_matrices(Lanes lanes) { load(lanes, false); }
void load_matrices_transposed(Lanes lanes) { load(lanes, true); }
void multiply_bf16(Lanes lanes) { multiply<__nv_bfloat16>(lanes); }
void multiply_f16(Lanes lanes) { multiply<__half>(lanes); }

}  // namespace shoal::kernels::emulated
