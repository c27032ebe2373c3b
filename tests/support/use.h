// Measures what a parser takes, and says what it may take: per byte of input 1 µs of this process's
// CPU time, plus 10 ms; and a heap peak of 64 times the input, plus 16 MiB. The time is that of an
// idle processor of 2023: where one is slower, or another process shares its caches, a fixed piece
// of work beside the parser says by how much (slowness()).
//
// Exactly one source of a test program defines SHOAL_TEST_COUNTS_MEMORY before it includes this
// header. Operator new and delete then count allocations in the whole program. ICU and OpenSSL
// allocate without them and are not counted. (Programs of tests/fuzz count by the sanitizer's
// hooks.)
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <new>

#include <malloc.h>

namespace shoal::testing {

struct HeapUse {
  std::atomic<std::int64_t> now{0}, peak{0};

  void add(std::size_t bytes) {
    const std::int64_t in_use = now += static_cast<std::int64_t>(bytes);
    std::int64_t seen = peak;
    while (seen < in_use && !peak.compare_exchange_weak(seen, in_use)) {
    }
  }
  void remove(std::size_t bytes) { now -= static_cast<std::int64_t>(bytes); }
};
inline HeapUse& heap_use() {
  static HeapUse use;
  return use;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
inline constexpr double kSlowBuild = 20;
#else
inline constexpr double kSlowBuild = 1;
#endif

inline double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// How many times longer a fixed piece of work takes here and now than on an idle Xeon of 2023 at
// 2 GHz or more; at least 1. The work reads and writes 1 MiB at random places.
inline double slowness() {
  constexpr double kIdleSeconds = 0.003;
  constexpr std::uint32_t kWords = std::uint32_t{1} << 18;
  static std::array<std::uint32_t, kWords> words{};
  const double start = cpu_seconds();
  std::uint32_t at = 1;
  for (int i = 0; i < 300'000; ++i) {
    at = at * 1'664'525U + 1'013'904'223U;
    std::uint32_t& word = words[(at >> 8) % kWords];
    word += at;
    at ^= word & 1U;
  }
  return std::max(1.0, (cpu_seconds() - start) / kIdleSeconds);
}

struct Use {
  double seconds = 0;
  std::int64_t bytes = 0;
};

inline Use allowed_use(std::size_t input_bytes) {
  return {.seconds = kSlowBuild * (1e-6 * static_cast<double>(input_bytes) + 0.010),
          .bytes = 64 * static_cast<std::int64_t>(input_bytes) + (std::int64_t{16} << 20)};
}

// What `parse` takes. The time is the best of a few tries, each in the idle processor's seconds.
template <typename Parse>
Use measured_use(const Use& allowed, const Parse& parse) {
  Use use;
  constexpr int kTries = 9;
  for (int i = 0; i < kTries; ++i) {
    HeapUse& heap = heap_use();
    const std::int64_t before = heap.now;
    heap.peak = before;
    const double start = cpu_seconds();
    parse();
    double took = cpu_seconds() - start;
    if (took > allowed.seconds) took /= slowness();
    use.seconds = i == 0 ? took : std::min(use.seconds, took);
    use.bytes = std::max(use.bytes, heap.peak - before);
    if (use.seconds <= allowed.seconds || use.seconds > 50 * allowed.seconds) break;
  }
  return use;
}

}  // namespace shoal::testing

#ifdef SHOAL_TEST_COUNTS_MEMORY
namespace {
void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  shoal::testing::heap_use().add(::malloc_usable_size(block));
  return block;
}
void uncounted(void* block) noexcept {
  if (block == nullptr) return;
  shoal::testing::heap_use().remove(::malloc_usable_size(block));
  std::free(block);
}
}  // namespace
void* operator new(std::size_t bytes) {
  return counted(std::malloc(std::max<std::size_t>(bytes, 1)));
}
void* operator new(std::size_t bytes, std::align_val_t align) {
  const auto to = static_cast<std::size_t>(align);
  return counted(std::aligned_alloc(to, (std::max<std::size_t>(bytes, 1) + to - 1) / to * to));
}
void operator delete(void* block) noexcept { uncounted(block); }
void operator delete(void* block, std::size_t) noexcept { uncounted(block); }
void operator delete(void* block, std::align_val_t) noexcept { uncounted(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { uncounted(block); }
#endif
