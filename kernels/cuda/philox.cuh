// Random numbers of kernels/random.h on the device: the same bits at the same coordinates.
#pragma once

#include <cstdint>

#include "shoal/kernels/cuda/divisor.cuh"
#include "shoal/kernels/random.h"

namespace shoal::kernels {

// Dropout of a [rows, columns] tensor, prepared by the host (make_row_dropout, dropout.h) and
// passed by value. The site's state is in device memory and is read when the kernel runs.
struct RowDropout {
  RandomSite site;
  std::uint32_t threshold = 0;  // kept if bits >= threshold; 0: all are kept and no bits are drawn
  float scale = 1;              // factor of the kept elements
  std::int64_t rows_per_sample = 1, row_offset = 0, column_offset = 0, columns = 0;
  Divisor divisor;  // by rows_per_sample, used if row and rows_per_sample have 32 bits
  const std::int32_t* rows = nullptr;  // DropoutArgs::rows, in device memory

  SHOAL_HOST_DEVICE std::int64_t counted(std::int64_t row) const {
    if (rows == nullptr) return row;
    return rows[row] < 0 ? 0 : rows[row];
  }
  // Batch row of the row.
  SHOAL_HOST_DEVICE std::int64_t batch_row(std::int64_t row) const {
    return (row | rows_per_sample) >> 32 == 0 ? divisor.quotient(static_cast<std::uint32_t>(row))
                                              : row / rows_per_sample;
  }
  SHOAL_HOST_DEVICE std::uint32_t sample(std::int64_t row) const {
    return site.sample_first +
           static_cast<std::uint32_t>(batch_row(counted(row))) * site.sample_stride;
  }
  // Coordinate of the row's local column 0 inside its sample.
  SHOAL_HOST_DEVICE std::uint64_t first_element(std::int64_t row) const {
    const std::int64_t at = counted(row);
    return static_cast<std::uint64_t>(
        (row_offset + at - batch_row(at) * rows_per_sample) * columns + column_offset);
  }
};

// A resolved RandomSite; each thread reads it once.
struct PhiloxKey {
  std::uint32_t key0, key1, site, step;

  SHOAL_HOST_DEVICE explicit PhiloxKey(const RandomSite& from)
      : key0(static_cast<std::uint32_t>(from.seed)),
        key1(static_cast<std::uint32_t>(from.seed >> 32)),
        site(from.site),
        step(from.state ? from.state->step : 0) {}
};

// The four words of elements 4 * block .. 4 * block + 3 of a sample.
SHOAL_HOST_DEVICE void philox_block(const PhiloxKey& key, std::uint32_t sample, std::uint64_t block,
                                    std::uint32_t* words) {
  std::uint32_t c0 = static_cast<std::uint32_t>(block);
  std::uint32_t c1 = (sample << 8) | (static_cast<std::uint32_t>(block >> 32) & 0xffu);
  std::uint32_t c2 = key.site, c3 = key.step;
  std::uint32_t key0 = key.key0, key1 = key.key1;
  SHOAL_UNROLL
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = c0;
  words[1] = c1;
  words[2] = c2;
  words[3] = c3;
}

// The bits of N elements starting at `element`, N a multiple of 4. If `element` is not the first of
// a block, one more block is computed.
template <int N>
SHOAL_HOST_DEVICE void philox_bits(const PhiloxKey& key, std::uint32_t sample,
                                   std::uint64_t element, std::uint32_t (&bits)[N]) {
  static_assert(N % 4 == 0, "whole blocks");
  const std::uint64_t block = element / 4;
  const auto lane = static_cast<unsigned>(element % 4);
  SHOAL_UNROLL
  for (int b = 0; b < N / 4; ++b) philox_block(key, sample, block + b, bits + 4 * b);
  if (lane == 0) return;
  std::uint32_t next[4];
  philox_block(key, sample, block + N / 4, next);
  // Shifts down by `lane` in registers, since indexing an array at run time would need local
  // memory.
  SHOAL_UNROLL
  for (int k = 0; k < N; ++k) {
    const std::uint32_t by1 = k + 1 < N ? bits[(k + 1) % N] : next[(k + 1) % 4];
    const std::uint32_t by2 = k + 2 < N ? bits[(k + 2) % N] : next[(k + 2) % 4];
    const std::uint32_t by3 = k + 3 < N ? bits[(k + 3) % N] : next[(k + 3) % 4];
    bits[k] = lane == 1 ? by1 : lane == 2 ? by2 : by3;
  }
}

// The bits of one element.
SHOAL_HOST_DEVICE std::uint32_t philox_bits_at(const PhiloxKey& key, std::uint32_t sample,
                                               std::uint64_t element) {
  std::uint32_t words[4];
  philox_block(key, sample, element / 4, words);
  const auto lane = static_cast<unsigned>(element % 4);
  return lane == 0 ? words[0] : lane == 1 ? words[1] : lane == 2 ? words[2] : words[3];
}

// Uniform in [0, 1) from the upper 24 bits.
SHOAL_HOST_DEVICE float uniform_of(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

#ifdef __CUDACC__
// Dropout of one value, rounded as on the CPU: the product is not fused with later operations.
__device__ __forceinline__ float dropped(float x, std::uint32_t bits, std::uint32_t threshold,
                                         float scale) {
  return bits < threshold ? 0.0f : __fmul_rn(x, scale);
}

#endif

}  // namespace shoal::kernels
