#include "harness/peaks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "harness/peaks.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// Must come after foreach_target.h.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/memory/memory_resource.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<float> kFloat;

void Triad(float* a, const float* b, const float* c, std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloat));
  const auto s = hn::Set(kFloat, 3.0f);
  for (std::int64_t i = 0; i + lanes <= count; i += lanes)
    hn::StoreU(hn::MulAdd(s, hn::LoadU(kFloat, c + i), hn::LoadU(kFloat, b + i)), kFloat, a + i);
}

void Copy(float* a, const float* b, std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloat));
  for (std::int64_t i = 0; i + lanes <= count; i += lanes)
    hn::StoreU(hn::LoadU(kFloat, b + i), kFloat, a + i);
}

float Read(const float* a, std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(kFloat));
  auto s0 = hn::Zero(kFloat), s1 = s0, s2 = s0, s3 = s0;
  for (std::int64_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::Add(s0, hn::LoadU(kFloat, a + i));
    s1 = hn::Add(s1, hn::LoadU(kFloat, a + i + lanes));
    s2 = hn::Add(s2, hn::LoadU(kFloat, a + i + 2 * lanes));
    s3 = hn::Add(s3, hn::LoadU(kFloat, a + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(kFloat, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// Runs twelve independent chains: more than latency times ports on current cores, so that no port
// idles. Returns the number of operations.
double MultiplyAdds(std::int64_t rounds, float* sink) {
  const auto x = hn::Set(kFloat, 0.999f), y = hn::Set(kFloat, 0.001f);
  // Different initial values keep the compiler from merging the chains.
  const auto from = [](float value) HWY_ATTR { return hn::Set(kFloat, value); };
  auto a = from(1), b = from(2), c = from(3), e = from(4), f = from(5), g = from(6);
  auto h = from(7), i = from(8), j = from(9), k = from(10), l = from(11), m = from(12);
  for (std::int64_t round = 0; round < rounds; ++round) {
    a = hn::MulAdd(a, x, y), b = hn::MulAdd(b, x, y), c = hn::MulAdd(c, x, y);
    e = hn::MulAdd(e, x, y), f = hn::MulAdd(f, x, y), g = hn::MulAdd(g, x, y);
    h = hn::MulAdd(h, x, y), i = hn::MulAdd(i, x, y), j = hn::MulAdd(j, x, y);
    k = hn::MulAdd(k, x, y), l = hn::MulAdd(l, x, y), m = hn::MulAdd(m, x, y);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i)));
  *sink = hn::GetLane(hn::Add(sum, hn::Add(hn::Add(j, k), hn::Add(l, m))));
  return static_cast<double>(rounds) * 12 * 2 * static_cast<double>(hn::Lanes(kFloat));
}

}  // namespace shoal::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#if HWY_ARCH_X86_64
#include <immintrin.h>
#endif

namespace shoal::bench {
namespace {
HWY_EXPORT(Triad);
HWY_EXPORT(Copy);
HWY_EXPORT(Read);
HWY_EXPORT(MultiplyAdds);

template <class Body>
double best_seconds(int runs, const Body& body) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    const auto start = Clock::now();
    body();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

// GFLOP/s of work(rounds, sink), which returns its operation count, run on all threads
// concurrently.
template <class Work>
double rate(int threads, const Work& work) {
  std::atomic<double> operations{0};
  const double seconds = best_seconds(5, [&] {
    operations = 0;
    parallel_for(threads, threads, 1, [&](std::int64_t, std::int64_t) {
      float sink = 0;
      const double done = work(std::int64_t{2000000}, &sink);
      // Reading `sink` keeps the compiler from removing the chains.
      operations.fetch_add(sink == 12345.0f ? 0 : done);
    });
  });
  return operations.load() / seconds * 1e-9;
}

#if HWY_ARCH_X86_64
[[gnu::target("avx512f,avx512bf16")]] double dot_bf16(std::int64_t rounds, float* sink) {
  __m512i ones = _mm512_set1_epi32(0x3f803f80);
  const __m512bh pair = reinterpret_cast<__m512bh&>(ones);
  __m512 chains[12];
  for (int i = 0; i < 12; ++i) chains[i] = _mm512_set1_ps(static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round)
    for (auto& chain : chains) chain = _mm512_dpbf16_ps(chain, pair, pair);
  __m512 sum = chains[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_ps(sum, chains[i]);
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sum);
  *sink = lanes[0];
  return static_cast<double>(rounds) * 12 * 64;
}
#endif

}  // namespace

Bandwidth measure_bandwidth(int threads, std::int64_t bytes) {
  const std::int64_t count = std::max<std::int64_t>(bytes / 4 / 64 * 64, 64);
  const auto size = static_cast<std::size_t>(count);
  // Same allocator as for kernels: huge pages double the bandwidth of large arrays.
  const auto memory = make_host_memory();
  const Buffer buffers[] = {Buffer(*memory, 4 * size, MemoryTag::workspace),
                            Buffer(*memory, 4 * size, MemoryTag::workspace),
                            Buffer(*memory, 4 * size, MemoryTag::workspace)};
  for (const Buffer& buffer : buffers) std::memset(buffer.data(), 0, buffer.size());
  float* const a = static_cast<float*>(buffers[0].data());
  const float* const b = static_cast<const float*>(buffers[1].data());
  const float* const c = static_cast<const float*>(buffers[2].data());
  const auto over = [&](const auto& body) {
    parallel_for(threads, count / 64, 64, [&](std::int64_t begin, std::int64_t end) {
      body(begin * 64, (end - begin) * 64);
    });
  };
  // Repeat small arrays, so that a run is long enough to time.
  const auto repeats = std::max<std::int64_t>(1, (64 << 20) / (3 * 4 * count));
  const auto seconds = [&](const auto& body) {
    return best_seconds(7,
                        [&] {
                          for (std::int64_t repeat = 0; repeat < repeats; ++repeat) over(body);
                        }) /
           static_cast<double>(repeats);
  };
  const auto moved = static_cast<double>(4 * count);
  Bandwidth result;
  result.copy = 2e-9 * moved / seconds([&](std::int64_t i, std::int64_t n) {
                  HWY_DYNAMIC_DISPATCH(Copy)(a + i, b + i, n);
                });
  result.triad = 3e-9 * moved / seconds([&](std::int64_t i, std::int64_t n) {
                   HWY_DYNAMIC_DISPATCH(Triad)(a + i, b + i, c + i, n);
                 });
  std::atomic<float> sink{0};
  result.read = 1e-9 * moved / seconds([&](std::int64_t i, std::int64_t n) {
                  sink = HWY_DYNAMIC_DISPATCH(Read)(a + i, n);
                });
  return result;
}

double measure_f32_peak(int threads) {
  return rate(threads, [](std::int64_t rounds, float* sink) {
    return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(rounds, sink);
  });
}

double measure_bf16_peak(int threads) {
#if HWY_ARCH_X86_64
  if (__builtin_cpu_supports("avx512bf16")) return rate(threads, dot_bf16);
#endif
  (void)threads;
  return 0;
}

}  // namespace shoal::bench
#endif
