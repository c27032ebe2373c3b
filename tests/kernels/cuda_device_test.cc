// Plain arithmetic of the CUDA kernels, compiled for the host.
#include <random>

#include <gtest/gtest.h>

#include "shoal/kernels/cuda/divisor.cuh"
#include "shoal/kernels/cuda/dropout.h"
#include "shoal/kernels/cuda/embedding_sort.cuh"
#include "shoal/kernels/cuda/packed_range.cuh"
#include "shoal/kernels/cuda/row_packs.cuh"

namespace shoal::kernels {
namespace {

template <int N>
void expect_the_bits_of(const RandomSite& site, std::uint32_t sample, std::uint64_t element) {
  const PhiloxKey key(site);
  std::uint32_t bits[N];
  philox_bits(key, sample, element, bits);
  for (std::uint64_t k = 0; k < N; ++k) {
    ASSERT_EQ(bits[k], random_bits(site, sample, element + k)) << element << " + " << k;
    ASSERT_EQ(philox_bits_at(key, sample, element + k), bits[k]) << element << " + " << k;
  }
}

TEST(CudaPhilox, GivesTheBitsOfRandomH) {
  StepState state;
  state.step = 12;
  RandomSite site;
  site.seed = 0x123456789abcdef0u;
  site.site = 77;
  for (const StepState* at : {static_cast<const StepState*>(nullptr), &std::as_const(state)}) {
    site.state = at;
    for (const std::uint64_t element :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{6}, std::uint64_t{7},
          (std::uint64_t{1} << 34) - 3, (std::uint64_t{3} << 34) + 5})
      for (const std::uint32_t sample : {0u, 5u, (1u << 24) - 1}) {
        expect_the_bits_of<4>(site, sample, element);
        expect_the_bits_of<8>(site, sample, element);
        expect_the_bits_of<16>(site, sample, element);
      }
  }
}

TEST(CudaDropout, RowsFollowDropoutArgs) {
  DropoutArgs args;
  args.probability = 0.3f;
  args.site.sample_first = 5;
  args.site.sample_stride = 3;
  args.rows_per_sample = 4;
  args.row_offset = 9;
  args.column_offset = 6;
  const RowDropout local = make_row_dropout(args, 70);
  EXPECT_EQ(local.first_element(2), 11u * 70 + 6);
  EXPECT_EQ(local.threshold, dropout_threshold(0.3f));
  EXPECT_EQ(local.scale, 1 / (1 - 0.3f));
  args.columns = 5000;
  const RowDropout shard = make_row_dropout(args, 70);
  EXPECT_EQ(shard.sample(11), 5u + 3 * 2);
  EXPECT_EQ(shard.first_element(11), (9u + 3) * 5000 + 6);
  const std::int64_t far = (std::int64_t{1} << 33) + 2;
  const RowDropout large = make_row_dropout(args, 70);
  EXPECT_EQ(large.batch_row(far), far / 4);
  EXPECT_EQ(large.first_element(far), (9u + 2) * 5000 + 6);
}

TEST(CudaDivisor, DividesAnyThirtyTwoBits) {
  std::mt19937 engine(1);
  const auto expect_quotients = [&](std::uint32_t d) {
    const Divisor divisor(d);
    for (const std::uint32_t n : {0u, 1u, d - 1, d, d + 1, 0x7fffffffu, 0x80000000u, 0xffffffffu,
                                  static_cast<std::uint32_t>(engine())})
      ASSERT_EQ(divisor.quotient(n), n / d) << n << " / " << d;
  };
  for (std::uint32_t d = 1; d < 5000; ++d) expect_quotients(d);
  for (int i = 0; i < 5000; ++i) expect_quotients(static_cast<std::uint32_t>(engine()) | 1);
  for (const std::uint32_t d : {0x7fffffffu, 0x80000000u, 0x80000001u, 0xffffffffu})
    expect_quotients(d);
}

TEST(CudaRowPacks, CoverEachElementOnce) {
  for (const std::int64_t columns : {1, 7, 8, 33, 768}) {
    const RowPacks packs(5, columns, 8);
    EXPECT_EQ(packs.whole(), columns % 8 == 0);
    std::int64_t next = 0;
    for (std::int64_t pack = 0; pack < packs.total; ++pack) {
      const RowPacks::Place place = packs.at(pack);
      ASSERT_EQ(place.row * columns + place.column, next);
      next += std::min<std::int64_t>(place.count, 8);
    }
    EXPECT_EQ(next, 5 * columns);
  }
  EXPECT_EQ(RowPacks(3, 0, 8).total, 0);
  // More packs than 32 bits can count.
  const RowPacks large(std::int64_t{1} << 33, 20, 8);
  const RowPacks::Place last = large.at(large.total - 1);
  EXPECT_EQ(last.row, (std::int64_t{1} << 33) - 1);
  EXPECT_EQ(last.column, 16);
  EXPECT_EQ(last.count, 4);
}

// Visits every element in order, and uses whole packs only if all pointers are aligned.
TEST(CudaPackedRange, TakesEveryElementOnce) {
  for (const std::int64_t bytes : {1, 2, 4, 8})
    for (const std::uintptr_t first : {0x1000u, 0x1001u, 0x1002u, 0x1008u, 0x100fu})
      for (const std::uintptr_t differing : {0u, 0x40u, 0x48u, 0x1u})
        for (const std::int64_t count : {1, 2, 15, 16, 17, 1001}) {
          const PackedRange range(count, bytes, first, differing);
          const auto width = static_cast<int>(16 / bytes);
          std::int64_t next = 0;
          for (std::int64_t pack = 0; pack < range.packs; ++pack) {
            const Piece piece(range, pack, count, width);
            ASSERT_EQ(piece.first, next);
            ASSERT_GT(piece.count, 0);
            next += piece.count;
            const auto at = first + static_cast<std::uintptr_t>(piece.first * bytes);
            if (range.access == PackedRange::by_packs && piece.count == width) {
              ASSERT_EQ(at % 16, 0u);
              ASSERT_EQ((at ^ differing) % 16, 0u);
            } else if (range.access != PackedRange::by_bytes) {
              ASSERT_EQ((at | differing) % static_cast<std::uintptr_t>(bytes), 0u);
            }
          }
          ASSERT_EQ(next, count) << bytes << " bytes at " << first << ", differing " << differing;
        }
}

TEST(CudaEmbeddingSort, HasAPassForEveryByteOfAnId) {
  EXPECT_EQ(EmbeddingSort({1, 1, 1}).passes, 1);
  EXPECT_EQ(EmbeddingSort({1, 256, 1}).passes, 1);
  EXPECT_EQ(EmbeddingSort({1, 257, 1}).passes, 2);
  EXPECT_EQ(EmbeddingSort({1, 65536, 1}).passes, 2);
  EXPECT_EQ(EmbeddingSort({1, 65537, 1}).passes, 3);
  EXPECT_EQ(EmbeddingSort({1, std::int64_t{1} << 31, 1}).passes, 4);
  const EmbeddingSort sort({1025, 50257, 768});
  EXPECT_EQ(sort.tiles, 2);
  EXPECT_EQ(sort.chunks, 33);
  EXPECT_EQ(sort.partials % 256, 0u);
  EXPECT_GE(sort.bytes - sort.partials, 2u * 33 * 768 * 4);
  EXPECT_GE(sort.partials - sort.counts, 2u * 256 * 4);
}

}  // namespace
}  // namespace shoal::kernels
