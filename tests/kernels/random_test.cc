#include "shoal/kernels/random.h"

#include <gtest/gtest.h>

namespace shoal::kernels {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Random123's published known-answer vectors for philox4x32-10 (its file kat_vectors).
TEST(Philox, GivesKnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~std::uint64_t{0}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, CounterIsElementSampleSiteAndStep) {
  StepState state;
  state.step = 7;
  RandomSite site;
  site.seed = 42;
  site.state = &state;
  site.site = 99;
  const std::uint64_t element = (std::uint64_t{3} << 34) + 6;  // block 3·2^32 + 1, lane 2
  EXPECT_EQ(random_bits(site, 5, element), philox(42, {1, 5u << 8 | 3u, 99, 7})[2]);
}

TEST(Philox, ThresholdClampsAndRounds) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5f), 0x80000000u);
  EXPECT_EQ(dropout_threshold(1), 0xffffffffu);
}

}  // namespace
}  // namespace shoal::kernels
