// A warp's matrix instructions.
#include <cstring>

#include "support/emulated_gpu/stream.h"

#include "shoal/kernels/cuda/instructions.cuh"

namespace shoal::kernels::emulated {
namespace {

using emulated_gpu::Lanes;

// Lane l of matrix l / 8 says where row l % 8 begins; lane l receives, of each matrix, elements
// (l / 4, 2 (l % 4)) and the one after; of transposed ones, (2 (l % 4), l / 4) and the one below.
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

// c [16, 8] += a [16, 16] · b [16, 8]. Products are exact; they are summed in f64 and rounded with
// c once, where the hardware is a little less exact.
template <typename T>
void multiply(Lanes lanes) {
  float a[16][16];
  double b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& part = *static_cast<const Product*>(lanes[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      float* const to = &a[group + 8 * (i % 2)][pair + 8 * (i / 2)];
      to[0] = widened(part.a[i] & 0xffffu, T{});
      to[1] = widened(part.a[i] >> 16, T{});
    }
    for (int i = 0; i < 2; ++i) {
      b[pair + 8 * i][group] = widened(part.b[i] & 0xffffu, T{});
      b[pair + 8 * i + 1][group] = widened(part.b[i] >> 16, T{});
    }
  }
  for (int row = 0; row < 16; ++row) {
    double sum[8] = {};
    for (int k = 0; k < 16; ++k) {
      const double factor = a[row][k];
      for (int column = 0; column < 8; ++column) sum[column] += factor * b[k][column];
    }
    for (int column = 0; column < 8; ++column) {
      auto& part = *static_cast<Product*>(lanes[row % 8 * 4 + column / 2]);
      float& c = part.c[row / 8 * 2 + column % 2];
      c = static_cast<float>(c + sum[column]);
    }
  }
}

}  // namespace

void load_matrices(Lanes lanes) { load(lanes, false); }
void load_matrices_transposed(Lanes lanes) { load(lanes, true); }
void multiply_bf16(Lanes lanes) { multiply<__nv_bfloat16>(lanes); }
void multiply_f16(Lanes lanes) { multiply<__half>(lanes); }

}  // namespace shoal::kernels::emulated
