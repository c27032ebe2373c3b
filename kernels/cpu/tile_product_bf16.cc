#include "shoal/kernels/cpu/tile_product_bf16.h"

#include <cstring>

#include "shoal/kernels/cpu/instruction_set.h"
#include "shoal/runtime/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define SHOAL_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

namespace shoal::kernels {

#if defined(__x86_64__)

bool has_bf16_pairs() {
  static const bool has = allows_avx512_bf16() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bf16");
  return has;
}

namespace {

// Multiplies MR rows by two vectors. At MR = 8 there are 16 independent sums, which hide the
// latency of vdpbf16ps. They share two loads of b and eight broadcasts of a.
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

// Transposes rows of 16 words to words of 16 rows. The masks select all lanes; without them GCC 12
// warns about uninitialised values inside its own header.
SHOAL_BF16_TARGET inline void transpose_words(const char* from, std::int64_t row_bytes,
                                              std::uint32_t* to, std::int64_t to_stride) {
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * row_bytes);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_maskz_unpacklo_epi32(0xffff, a[i], a[i + 1]);
    b[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, a[i], a[i + 1]);
  }
  // Each 128-bit part of a[4 * g + c] holds words c, 4 + c, 8 + c or 12 + c of four rows.
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_maskz_unpacklo_epi64(0xff, b[i], b[i + 2]);
    a[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, b[i], b[i + 2]);
    a[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_maskz_shuffle_i32x4(0xffff, a[c], a[4 + c], 0x88),
                  odd_low = _mm512_maskz_shuffle_i32x4(0xffff, a[c], a[4 + c], 0xdd),
                  even_high = _mm512_maskz_shuffle_i32x4(0xffff, a[8 + c], a[12 + c], 0x88),
                  odd_high = _mm512_maskz_shuffle_i32x4(0xffff, a[8 + c], a[12 + c], 0xdd);
    const auto store = [&](int k, __m512i words)
                           SHOAL_BF16_TARGET { _mm512_storeu_si512(to + k * to_stride, words); };
    store(c, _mm512_maskz_shuffle_i32x4(0xffff, even_low, even_high, 0x88));
    store(4 + c, _mm512_maskz_shuffle_i32x4(0xffff, odd_low, odd_high, 0x88));
    store(8 + c, _mm512_maskz_shuffle_i32x4(0xffff, even_low, even_high, 0xdd));
    store(12 + c, _mm512_maskz_shuffle_i32x4(0xffff, odd_low, odd_high, 0xdd));
  }
}

}  // namespace

SHOAL_BF16_TARGET void transpose_bf16_panel(const void* source, std::int64_t row_bytes,
                                            std::int64_t words, std::uint32_t* panel) {
  for (std::int64_t k = 0; k < words; k += 16)
    for (std::int64_t j = 0; j < kBF16PanelWidth; j += 16)
      transpose_words(static_cast<const char*>(source) + j * row_bytes + k * 4, row_bytes,
                      panel + k * kBF16PanelWidth + j, kBF16PanelWidth);
}

SHOAL_BF16_TARGET void interleave_bf16_rows(const void* low, const void* high,
                                            std::uint32_t* line) {
  const __m512i a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(high);
  // In each eight columns (128 bits), `first` holds 0 to 3 and `second` 4 to 7.
  const __m512i first = _mm512_unpacklo_epi16(a, b), second = _mm512_unpackhi_epi16(a, b);
  const __m512i lower = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                upper = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  _mm512_storeu_si512(line, _mm512_permutex2var_epi64(first, lower, second));
  _mm512_storeu_si512(line + 16, _mm512_permutex2var_epi64(first, upper, second));
}

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
void transpose_bf16_panel(const void*, std::int64_t, std::int64_t, std::uint32_t*) {
  throw_error(ErrorCode::internal, "panels of bf16 pairs on a machine without their products");
}
void interleave_bf16_rows(const void*, const void*, std::uint32_t*) {
  throw_error(ErrorCode::internal, "panels of bf16 pairs on a machine without their products");
}
void multiply_bf16_pairs(const TileProduct::Call&) {
  throw_error(ErrorCode::internal, "products of bf16 pairs on a machine without them");
}

#endif

}  // namespace shoal::kernels
