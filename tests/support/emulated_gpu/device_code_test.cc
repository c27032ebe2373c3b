// Tests the emulation of device code with small kernels that need no stream or device memory.
#include "support/emulated_gpu/device_code.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/emulated_gpu/block.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/kernels/cuda/instructions.cuh"

namespace shoal::emulated_gpu {
namespace {

using kernels::copy_async;
using kernels::dynamic_shared;
using kernels::end_copies;
using kernels::load_matrices;
using kernels::load_matrices_transposed;
using kernels::multiply;
using kernels::wait_for_copies;

constexpr unsigned kAll = 0xffffffffu;

// While it lives, threads take turns in this order.
class InOrder {
 public:
  explicit InOrder(const std::string& order) {
    setenv("SHOAL_EMULATED_GPU_ORDER", order.c_str(), 1);
  }
  ~InOrder() {
    if (before_.empty())
      unsetenv("SHOAL_EMULATED_GPU_ORDER");
    else
      setenv("SHOAL_EMULATED_GPU_ORDER", before_.c_str(), 1);
  }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  std::string before_ =
      std::getenv("SHOAL_EMULATED_GPU_ORDER") ? std::getenv("SHOAL_EMULATED_GPU_ORDER") : "";
};
const std::vector<std::string> kOrders = {"forward", "reverse", "7"};

TEST(EmulatedBlocks, EveryThreadRunsOnce) {
  const dim3 grid(3, 2, 2), block(5, 7, 2);
  for (const std::string& order : kOrders) {
    const InOrder in_order(order);
    std::set<std::array<unsigned, 6>> seen;
    run_grid(grid, block, 0, [&] {
      EXPECT_EQ(gridDim.y, 2u);
      EXPECT_EQ(blockDim.y, 7u);
      EXPECT_LT(threadIdx.x, blockDim.x);
      seen.insert({blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z});
    });
    EXPECT_EQ(seen.size(), 12u * 70u) << order;
  }
}

// The order in which threads and blocks start.
std::vector<unsigned> begun() {
  std::vector<unsigned> begun;
  run_grid(2, 4, 0, [&] { begun.push_back(10 * blockIdx.x + threadIdx.x); });
  return begun;
}

TEST(EmulatedBlocks, OrderIsChosen) {
  const std::vector<unsigned> forward = {0, 1, 2, 3, 10, 11, 12, 13},
                              reverse(forward.rbegin(), forward.rend());
  for (const std::string order : {"forward", "reverse"}) {
    const InOrder in_order(order);
    EXPECT_EQ(begun(), order == "forward" ? forward : reverse);
  }
  {
    const InOrder in_order("mixed");
    std::set<std::vector<unsigned>> seen;
    for (int launch = 0; launch < 20; ++launch) seen.insert(begun());
    EXPECT_THAT(seen, ::testing::UnorderedElementsAre(forward, reverse));
  }
  const InOrder in_order("3");
  EXPECT_THAT(begun(), ::testing::UnorderedElementsAre(0, 1, 2, 3, 10, 11, 12, 13));
  const InOrder unknown("sideways");
  EXPECT_DEATH(begun(), "'sideways' is not mixed, forward, reverse or a number");
}

// Each thread passes a number to its neighbour through shared memory, twice.
std::vector<unsigned> pass_on(bool with_barriers, unsigned threads) {
  std::vector<unsigned> got(threads);
  run_grid(1, threads, 4 * threads, [&] {
    unsigned* const shared = dynamic_shared<unsigned>();
    unsigned value = threadIdx.x;
    for (int round = 0; round < 2; ++round) {
      shared[threadIdx.x] = value;
      if (with_barriers) __syncthreads();
      value = 1 + shared[(threadIdx.x + threads - 1) % threads];
      if (with_barriers) __syncthreads();
    }
    got[threadIdx.x] = value;
  });
  return got;
}

TEST(EmulatedBlocks, BarriersHoldInEveryOrder) {
  for (const unsigned threads : {1u, 31u, 64u, 100u, 1024u}) {
    std::vector<unsigned> expected(threads);
    for (unsigned i = 0; i < threads; ++i) expected[i] = (i + 2 * threads - 2) % threads + 2;
    for (const std::string& order : kOrders) {
      const InOrder in_order(order);
      EXPECT_EQ(pass_on(true, threads), expected) << threads << " threads, " << order;
    }
  }
}

TEST(EmulatedBlocks, MissingBarrierChangesResults) {
  const std::vector<unsigned> right = pass_on(true, 64);
  EXPECT_NE(pass_on(false, 64), right);
  const InOrder forwards("forward");
  // A reader may be lucky in one order, but not in both.
  const auto last_of_all = [] {
    unsigned sum = 0;
    run_grid(1, 8, 32, [&] {
      unsigned* const shared = dynamic_shared<unsigned>();
      shared[threadIdx.x] = 1;
      if (threadIdx.x == 7)
        for (int i = 0; i < 8; ++i) sum += shared[i];
    });
    return sum;
  };
  EXPECT_EQ(last_of_all(), 8u);
  const InOrder in_order("reverse");
  EXPECT_NE(last_of_all(), 8u);
}

TEST(EmulatedBlocks, BlockVotesCombineAllThreads) {
  for (const std::string& order : kOrders) {
    const InOrder in_order(order);
    run_grid(1, 40, 0, [&] {
      const int one = threadIdx.x == 35;
      EXPECT_NE(__syncthreads_or(one), 0);
      EXPECT_EQ(__syncthreads_or(0), 0);
      EXPECT_EQ(__syncthreads_and(one), 0);
      EXPECT_NE(__syncthreads_and(1), 0);
      EXPECT_EQ(__syncthreads_count(threadIdx.x < 3), 3);
    });
  }
}

// Kernels defined outside the macro, which would put all of their code on one line.
void one_thread_leaves() {
  if (threadIdx.x == 5) return;
  __syncthreads();
}
void two_barriers() {
  // NOLINTNEXTLINE(bugprone-branch-clone): the two barriers differ
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}
void barrier_within_a_warp() {
  if (threadIdx.x == 40)
    __syncthreads();
  else
    __syncwarp();
}
void own_lane_missing() { __syncwarp(0x7fffffffu); }
void differing_masks() { __syncwarp(threadIdx.x == 0 ? 3 : kAll); }
void part_of_a_warp_multiplies() {
  float c[4] = {};
  const std::uint32_t a[4] = {};
  multiply<__half>(c, a, 0, 0);
}

TEST(EmulatedBlocks, MeetingThatCannotHappenEndsTheTest) {
  const InOrder in_order("forward");
  EXPECT_DEATH(run_grid(dim3(1, 2), 64, 0, one_thread_leaves),
               "kernel launched at .*device_code_test.cc:.* block \\(0, 0, 0\\): 63 of 64 threads "
               "wait for ever at .*device_code_test.cc:[0-9]+, thread \\(0, 0, 0\\) first; thread "
               "\\(5, 0, 0\\) has ended");
  EXPECT_DEATH(run_grid(1, 64, 0, two_barriers),
               "thread \\(0, 0, 0\\) is at the barrier of .*, thread \\(63, 0, 0\\) at that of");
  EXPECT_DEATH(run_grid(1, 64, 0, barrier_within_a_warp),
               "31 of 64 threads wait for ever at .* \\(mask 0xffffffff\\), thread \\(32, 0, 0\\) "
               "first; thread \\(40, 0, 0\\) waits at");
  EXPECT_DEATH(run_grid(1, 32, 0, own_lane_missing),
               "thread \\(31, 0, 0\\): mask 0x7fffffff of .* lacks the lane");
  EXPECT_DEATH(run_grid(1, 32, 0, differing_masks),
               "thread \\(0, 0, 0\\) is at .* with mask 0x3, thread \\(31, 0, 0\\) of its warp at "
               ".* with mask 0xffffffff");
  EXPECT_DEATH(run_grid(1, 24, 0, part_of_a_warp_multiplies),
               "lanes 0xff000000 of the warp have ended");
}

TEST(EmulatedWarps, ShufflesExchangeValues) {
  for (const int width : {32, 8, 2}) {
    run_grid(1, 64, 0, [&] {
      const int lane = static_cast<int>(threadIdx.x) % 32, first = lane / width * width;
      const auto value = static_cast<double>(threadIdx.x);
      const double base = value - lane;
      for (int by = 0; by < width; ++by) {
        EXPECT_EQ(__shfl_sync(kAll, value, by, width), base + first + by);
        EXPECT_EQ(__shfl_up_sync(kAll, value, static_cast<unsigned>(by), width),
                  lane - first < by ? value : value - by);
        EXPECT_EQ(__shfl_down_sync(kAll, value, static_cast<unsigned>(by), width),
                  lane + by >= first + width ? value : value + by);
        EXPECT_EQ(__shfl_xor_sync(kAll, value, by, width), base + (lane ^ by));
      }
    });
  }
}

TEST(EmulatedWarps, VotesCoverTheLanesOfTheirMask) {
  run_grid(1, 32, 0, [&] {
    const unsigned lane = threadIdx.x;
    EXPECT_EQ(__ballot_sync(kAll, lane % 3 == 0), 0x49249249u);
    const unsigned same = __match_any_sync(kAll, lane % 4);
    EXPECT_EQ(same, 0x11111111u << lane % 4);
    EXPECT_EQ(__popc(same), 8);
    EXPECT_EQ(__ffs(static_cast<int>(same)), static_cast<int>(lane % 4) + 1);
    // Both halves of a warp do different things.
    if (lane < 16)
      EXPECT_EQ(__ballot_sync(0x0000ffffu, 1), 0x0000ffffu);
    else
      EXPECT_EQ(__shfl_xor_sync(0xffff0000u, lane, 1), lane ^ 1u);
  });
}

TEST(EmulatedWarps, EndedLanesNeitherDelayNorContribute) {
  for (const std::string& order : kOrders) {
    const InOrder in_order(order);
    run_grid(1, 32, 0, [&] {
      if (threadIdx.x >= 20) return;
      const float got = __shfl_xor_sync(kAll, 1.0f, 16);
      EXPECT_EQ(std::isnan(got), threadIdx.x >= 4 && threadIdx.x < 16) << threadIdx.x;
    });
  }
}

TEST(EmulatedMemory, SharedMemoryIsPoisonedAndEnds) {
  run_grid(2, 2, 64, [&] {
    float* const shared = dynamic_shared<float>();
    if (threadIdx.x == 0)
      for (int i = 0; i < 16; ++i) {
        EXPECT_TRUE(std::isnan(shared[i]));
        shared[i] = 1;
      }
  });
  EXPECT_DEATH(run_grid(1, 1, 64, [] { dynamic_shared<volatile float>()[16] = 1; }), "");
}

TEST(EmulatedMemory, MisalignedAccessEndsTheTest) {
  const auto store_at = [](unsigned offset) {
    run_grid(1, 1, 32, [&] {
      *reinterpret_cast<uint2*>(dynamic_shared<char>() + offset) = make_uint2(1, 2);
    });
  };
  store_at(8);
  EXPECT_DEATH(store_at(4),
               "device_code_test.cc:.* misaligned address .* requires 8 byte alignment");
}

TEST(EmulatedMemory, CopiesArriveAtOnceOrWhenWaitedFor) {
  alignas(16) std::array<std::uint32_t, 12> from{};
  for (std::uint32_t i = 0; i < 12; ++i) from[i] = i + 1;
  {
    const InOrder at_once("reverse");
    run_grid(1, 1, 16, [&] {
      copy_async(dynamic_shared<char>(), from.data(), true);
      EXPECT_EQ(*dynamic_shared<std::uint32_t>(), 1u);
    });
  }
  const InOrder late("forward");
  run_grid(1, 1, 48, [&] {
    auto* const to = dynamic_shared<std::uint32_t>();
    copy_async(to, from.data(), true);
    end_copies();
    copy_async(to + 4, from.data() + 4, false);
    end_copies();
    copy_async(to + 8, from.data() + 8, true);
    EXPECT_EQ(to[0], kAll);
    wait_for_copies<2>();
    EXPECT_EQ(to[0], kAll);
    wait_for_copies<1>();
    EXPECT_EQ(to[0], 1u);
    EXPECT_EQ(to[3], 4u);
    EXPECT_EQ(to[4], kAll);
    wait_for_copies<0>();
    EXPECT_EQ(to[4], 0u);
    EXPECT_EQ(to[7], 0u);
    EXPECT_EQ(to[8], kAll);  // not in a group yet
    end_copies();
    wait_for_copies<0>();
    EXPECT_EQ(to[11], 12u);
  });
  EXPECT_DEATH(run_grid(1, 1, 48, [&] { copy_async(dynamic_shared<char>(), &from[1], true); }),
               "thread \\(0, 0, 0\\): cp.async .* not both aligned to 16");
}

// One warp multiplies [16, 16] by [16, 8], columns 0 to 7 of a loaded [16, 16], from shared memory.
template <typename T>
void expect_product(T (*narrow)(float), float (*widen)(T)) {
  std::mt19937 engine(3);
  std::uniform_real_distribution<float> value(-2, 2);
  std::vector<T> a(256), b(256);
  for (T& x : a) x = narrow(value(engine));
  for (T& x : b) x = narrow(value(engine));
  std::vector<float> c(16 * 16), plain(16 * 16);
  for (unsigned i = 0; i < 16; ++i)
    for (unsigned j = 0; j < 16; ++j) {
      double sum = i + 0.5 * j;
      for (unsigned k = 0; k < 16; ++k)
        sum +=
            static_cast<double>(widen(a[16 * i + k])) * static_cast<double>(widen(b[16 * k + j]));
      plain[16 * i + j] = static_cast<float>(sum);
    }
  for (const bool b_by_columns : {false, true}) {
    run_grid(1, 32, 2 * 512, [&] {
      T* const shared = dynamic_shared<T>();
      const unsigned lane = threadIdx.x;
      for (unsigned i = lane; i < 256; i += 32) {
        shared[i] = a[i];
        shared[256 + (b_by_columns ? i % 16 * 16 + i / 16 : i)] = b[i];
      }
      __syncwarp();
      std::uint32_t left[4], right[4];
      load_matrices(left, shared + lane % 16 * 16 + lane / 16 * 8);
      if (b_by_columns)
        load_matrices(right, shared + 256 + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8);
      else
        load_matrices_transposed(right, shared + 256 + lane % 16 * 16 + lane / 16 * 8);
      for (unsigned half = 0; half < 2; ++half) {
        const unsigned column = 8 * half + lane % 4 * 2;
        const auto row_of = [&](unsigned e) { return lane / 4 + 8 * (e / 2); };
        float sum[4];
        for (unsigned e = 0; e < 4; ++e)
          sum[e] = static_cast<float>(row_of(e)) + 0.5f * static_cast<float>(column + e % 2);
        multiply<T>(sum, left, right[2 * half], right[2 * half + 1]);
        for (unsigned e = 0; e < 4; ++e) c[16 * row_of(e) + column + e % 2] = sum[e];
      }
    });
    EXPECT_EQ(c, plain) << "b " << (b_by_columns ? "by columns" : "by rows");
  }
}

TEST(EmulatedMatrices, WarpProductsEqualPlainProducts) {
  expect_product<__nv_bfloat16>(__float2bfloat16_rn, __bfloat162float);
  expect_product<__half>(__float2half_rn, __half2float);
}

// Checks that a format's finite values from 0 up survive a round trip. Values between two of them
// round to the nearer one, and those in the middle to the even one. `largest`: the bits of the
// largest finite value.
template <typename T>
void expect_conversions(T (*narrow)(float), float (*widen)(T), unsigned largest) {
  const auto bits = [&](double x) { return unsigned{narrow(static_cast<float>(x)).bits}; };
  const float infinity = std::numeric_limits<float>::infinity();
  for (unsigned pattern = 0; pattern <= 0xffffu; ++pattern) {
    const T value{static_cast<std::uint16_t>(pattern)};
    const unsigned size = pattern & 0x7fffu;
    const float wide = widen(value);
    if (size > largest + 1) {
      EXPECT_TRUE(std::isnan(wide)) << pattern;
      EXPECT_EQ(narrow(wide).bits, 0x7fffu) << pattern;
      continue;
    }
    ASSERT_EQ(narrow(wide).bits, pattern);
    ASSERT_EQ(std::signbit(wide), pattern > 0x7fffu);
    if (size > largest) {
      ASSERT_EQ(std::abs(wide), infinity);
      continue;
    }
    // The value above the largest finite one is what the format would hold next.
    const double here = std::abs(static_cast<double>(wide)),
                 above = size == largest
                             ? 2 * here - static_cast<double>(
                                              widen({static_cast<std::uint16_t>(size - 1)}))
                             : static_cast<double>(widen({static_cast<std::uint16_t>(size + 1)}));
    const auto middle = static_cast<float>((here + above) / 2);
    ASSERT_EQ(middle, (here + above) / 2) << "the middle of " << pattern << " is not an f32";
    ASSERT_EQ(bits(middle), size % 2 == 0 ? size : size + 1);
    ASSERT_EQ(bits(-middle), (size % 2 == 0 ? size : size + 1) | 0x8000u);
    ASSERT_EQ(bits(std::nextafter(middle, 0.0f)), size);
    ASSERT_EQ(bits(std::nextafter(middle, infinity)), size + 1);
  }
}

TEST(EmulatedConversions, RoundEveryPatternCorrectly) {
  // Subnormals of bf16, and the middles between them, are exact in f32.
  expect_conversions<__nv_bfloat16>(__float2bfloat16_rn, __bfloat162float, 0x7f7f);
  expect_conversions<__half>(__float2half_rn, __half2float, 0x7bff);
}

TEST(EmulatedConversions, GiveKnownValues) {
  EXPECT_EQ(__float2half_rn(1.0f).bits, 0x3c00);
  EXPECT_EQ(__float2half_rn(-65504.0f).bits, 0xfbff);
  EXPECT_EQ(__float2half_rn(0x1p-24f).bits, 1);
  EXPECT_EQ(__float2half_rn(0x1p-25f).bits, 0);
  EXPECT_EQ(__half2float({0x3555}), 0.333251953125f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(__half2float({0xfe01})), 0x7fffffffu);
  EXPECT_EQ(__float2bfloat16_rn(1.0f).bits, 0x3f80);
  EXPECT_EQ(__float2bfloat16_rn(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(__bfloat162float({0x4049}), 3.140625f);
}

TEST(EmulatedArithmetic, QuickFunctionsAreAccurate) {
  EXPECT_EQ(__fdividef(1.0f, 0x1p127f), 0.0f);
  EXPECT_EQ(__fdividef(3.0f, 0x1p126f), 3 * 0x1p-126f);
  EXPECT_TRUE(std::isnan(__fdividef(INFINITY, 0x1p127f)));
  EXPECT_EQ(kernels::exp2_quick(-126.5f), 0.0f);
  EXPECT_EQ(kernels::exp2_quick(-126.0f), 0x1p-126f);
  EXPECT_TRUE(std::isnan(kernels::exp2_quick(NAN)));
  float sine = 0, cosine = 0;
  sincospif(2.0e6f + 0.5f, &sine, &cosine);
  EXPECT_EQ(sine, 1.0f);
  EXPECT_NEAR(cosine, 0, 1e-7);
}

TEST(EmulatedLaunches, RefuseSizesBeyondTheHardware) {
  const auto check = [](dim3 grid, dim3 block, std::size_t shared) {
    return check_launch(nullptr, grid, block, shared);
  };
  EXPECT_EQ(check(dim3(0x7fffffff, 65535, 65535), dim3(32, 16, 2), 48 * 1024), cudaSuccess);
  EXPECT_EQ(check(1, dim3(1, 1, 64), 0), cudaSuccess);
  for (const dim3& grid :
       {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(0x80000000u), dim3(1, 65536), dim3(1, 1, 65536)})
    EXPECT_EQ(check(grid, 32, 0), cudaErrorInvalidConfiguration);
  for (const dim3& block : {dim3(0), dim3(1, 0), dim3(1025), dim3(33, 32), dim3(1, 1, 65)})
    EXPECT_EQ(check(1, block, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(check(1, 32, 48 * 1024 + 1), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace shoal::emulated_gpu
