#include "shoal/kernels/cpu/tile_product_bf16.h"

#include <cstring>

#include "shoal/runtime/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define SHOAL_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

namespace shoal::kernels {

#if defined(__x86_64__)

bool has_bf16_pairs() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
}

namespace {

// MR rows by two vectors: 16 sums at MR = 8, enough to hide the latency of vdpbf16ps, with two
// loads of b for eight broadcasts of a.
template <int MR>
SHOAL_BF16_TARGET void block(const TileProduct::Call& call, const char* a, const char* b,
                             float* c) {
  __m512 sum0[MR], sum1[MR];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    sum0[r] = call.accumulate ? _mm512_loadu_ps(c + r * call.c_stride) : _mm512_setzero_ps();
    sum1[r] = call.accumulate ? _mm512_loadu_ps(c + r * call.c_stride + 16) : _mm512_setzero_ps();
  }
  for (std::int64_t k = 0; k < call.k_words; ++k) {
    const auto b0 = (__m512bh)_mm512_loadu_si512(b + k * 128);
    const auto b1 = (__m512bh)_mm512_loadu_si512(b + k * 128 + 64);
    const char* word = a + k * call.a.word_bytes;
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, word + r * call.a.row_bytes, sizeof pair);
      const auto both = (__m512bh)_mm512_set1_epi32(pair);
      sum0[r] = _mm512_dpbf16_ps(sum0[r], both, b0);
      sum1[r] = _mm512_dpbf16_ps(sum1[r], both, b1);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
    _mm512_storeu_ps(c + r * call.c_stride, sum0[r]);
    _mm512_storeu_ps(c + r * call.c_stride + 16, sum1[r]);
  }
}

}  // namespace

void multiply_bf16_pairs(const TileProduct::Call& call) {
  using Block = void (*)(const TileProduct::Call&, const char*, const char*, float*);
  static constexpr Block kBlocks[] = {block<1>, block<2>, block<3>, block<4>,
                                      block<5>, block<6>, block<7>, block<8>};
  const char* packed = static_cast<const char*>(call.packed) + call.first_word * 128;
  for (std::int64_t n = 0; n < call.n; n += kBF16PanelWidth, packed += call.panel_words * 128)
    for (std::int64_t m = 0; m < call.m; m += 8) {
      const std::int64_t rows = call.m - m < 8 ? call.m - m : 8;
      kBlocks[rows - 1](call, static_cast<const char*>(call.a.data) + m * call.a.row_bytes, packed,
                        call.c + m * call.c_stride + n);
    }
}

#else

bool has_bf16_pairs() { return false; }
void multiply_bf16_pairs(const TileProduct::Call&) {
  throw_error(ErrorCode::internal, "products of bf16 pairs on a machine without them");
}

#endif

}  // namespace shoal::kernels
