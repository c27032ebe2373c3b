#include "product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "sanitizer.h"

namespace shoal::emulated_gpu {
namespace {

constexpr std::int64_t kRows = 8, kColumns = 8;  // size of a tile
constexpr std::int64_t kAtOnce = 512;
// A column of a tile: one AVX2 register. If a vector needs several registers, g++ 12 keeps the sums
// in memory, and the product takes 50 times as long.
using Floats = float __attribute__((vector_size(32)));
static_assert(sizeof(Floats) == kRows * sizeof(float));
using Tile = std::array<float, static_cast<std::size_t>(kRows* kColumns)>;  // [column][row]

float load(const void* from, std::int64_t i, DType type) {
  if (type == DType::f32) return static_cast<const float*>(from)[i];
  if (type == DType::bf16) return static_cast<float>(static_cast<const bfloat16*>(from)[i]);
  return static_cast<float>(static_cast<const float16*>(from)[i]);
}
void store(void* to, std::int64_t i, DType type, float value) {
  if (type == DType::f32)
    static_cast<float*>(to)[i] = value;
  else if (type == DType::bf16)
    static_cast<bfloat16*>(to)[i] = bfloat16(value);
  else
    static_cast<float16*>(to)[i] = float16(value);
}

// Packs an operand as f32 in strips of `width` along its outer index: [strip][k][width]. Positions
// beyond the end are zero.
std::vector<float> packed(const void* from, DType type, std::int64_t outer, std::int64_t k,
                          std::int64_t outer_step, std::int64_t k_step, std::int64_t width) {
  const std::int64_t strips = (outer + width - 1) / width;
  std::vector<float> out(static_cast<std::size_t>(strips * k * width));
  const auto fill = [&](std::int64_t i, std::int64_t p) {
    out[static_cast<std::size_t>((i / width * k + p) * width + i % width)] =
        load(from, i * outer_step + p * k_step, type);
  };
  if (outer_step == 1)
    for (std::int64_t p = 0; p < k; ++p)
      for (std::int64_t i = 0; i < outer; ++i) fill(i, p);
  else
    for (std::int64_t i = 0; i < outer; ++i)
      for (std::int64_t p = 0; p < k; ++p) fill(i, p);
  return out;
}

// Each element is a sum, in the order of k, of partial sums over kAtOnce. The bits are the same on
// every processor, and the accuracy is that of a GPU even if k is as large as a vocabulary.
// packed() has laid out the input, so sanitizers need not check these reads, which would take most
// of the time.
SHOAL_MAY_TOUCH_ANYTHING __attribute__((target_clones("avx2", "default"))) void multiply_tile(
    const float* a, const float* b, std::int64_t k, float* out) {
  Floats totals[kColumns] = {};
  for (std::int64_t first = 0; first < k; first += kAtOnce) {
    Floats sums[kColumns] = {};
    for (std::int64_t p = first; p < std::min(first + kAtOnce, k); ++p) {
      Floats rows;
      std::memcpy(&rows, a + p * kRows, sizeof rows);
      for (std::int64_t j = 0; j < kColumns; ++j) sums[j] += rows * b[p * kColumns + j];
    }
    for (std::int64_t j = 0; j < kColumns; ++j) totals[j] += sums[j];
  }
  std::memcpy(out, totals, sizeof totals);
}

float gelu(float x) {
  return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}
float gelu_slope(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

// Computes the final value of element (i, j) from its sum.
void finish(const Product& p, std::int64_t i, std::int64_t j, float sum) {
  float value = p.alpha * sum;
  if (p.beta != 0) value += p.beta * load(p.c, j * p.c_leading + i, p.output);
  if (p.bias) value += load(p.bias, i, p.output);
  const std::int64_t aux = j * p.aux_leading + i;
  if (p.gelu == Gelu::forward) {
    if (p.aux) store(p.aux, aux, p.output, value);
    value = gelu(value);
  } else if (p.gelu == Gelu::gradient) {
    value *= gelu_slope(load(p.aux, aux, p.output));
  }
  store(p.d, j * p.d_leading + i, p.output, value);
}

// Sums a packed operand over k in two halves. No kernel of Shoal's adds in that order.
void sum_over_k(const std::vector<float>& packed, std::int64_t outer, std::int64_t width,
                const Product& p, void* out) {
  for (std::int64_t i = 0; i < outer; ++i) {
    float halves[2] = {};
    for (std::int64_t q = 0; q < p.k; ++q) {
      float& half = halves[2 * q / p.k];
      half += packed[static_cast<std::size_t>((i / width * p.k + q) * width + i % width)];
      if (p.rough_sums) half = static_cast<float>(bfloat16(half));
    }
    store(out, i, p.output, halves[0] + halves[1]);
  }
}

}  // namespace

void multiply(const Product& p) {
  const auto a = packed(p.a, p.input, p.m, p.k, p.transpose_a ? p.a_leading : 1,
                        p.transpose_a ? 1 : p.a_leading, kRows);
  const auto b = packed(p.b, p.input, p.n, p.k, p.transpose_b ? 1 : p.b_leading,
                        p.transpose_b ? p.b_leading : 1, kColumns);
  if (p.a_sums) sum_over_k(a, p.m, kRows, p, p.a_sums);
  if (p.b_sums) sum_over_k(b, p.n, kColumns, p, p.b_sums);
  for (int part = 0; part < p.parts; ++part) {
    const std::int64_t first = p.k * part / p.parts, last = p.k * (part + 1) / p.parts;
    for (std::int64_t j = 0; j < p.n; j += kColumns)
      for (std::int64_t i = 0; i < p.m; i += kRows) {
        Tile tile;
        multiply_tile(a.data() + (i / kRows * p.k + first) * kRows,
                      b.data() + (j / kColumns * p.k + first) * kColumns, last - first,
                      tile.data());
        for (std::int64_t column = j; column < std::min(j + kColumns, p.n); ++column)
          for (std::int64_t row = i; row < std::min(i + kRows, p.m); ++row) {
            const float sum = tile[static_cast<std::size_t>((column - j) * kRows + row - i)];
            if (p.parts == 1)
              finish(p, row, column, sum);
            else
              p.partial[(part * p.n + column) * p.m + row] = sum;
          }
      }
  }
  if (p.parts == 1) return;
  for (std::int64_t j = 0; j < p.n; ++j)
    for (std::int64_t i = 0; i < p.m; ++i) {
      float sum = 0;
      for (int part = 0; part < p.parts; ++part) sum += p.partial[(part * p.n + j) * p.m + i];
      finish(p, i, j, sum);
    }
}

}  // namespace shoal::emulated_gpu
