// Checks that a parser stays within its budget: per byte of input 1 µs of this process's CPU time,
// plus 10 ms; and a heap peak of 64 times the input, plus 16 MiB.
//
// Exactly one source of a test program defines SHOAL_TEST_COUNTS_MEMORY before it includes this
// header. Operator new and delete then count allocations in the whole program. ICU and OpenSSL
// allocate without them and are not counted.
//
//   within_budget(text.size(), "a deep document", [&] { parse(text); });
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>
#include <string>

#include <gtest/gtest.h>
#include <malloc.h>

namespace shoal::testing {

struct HeapUse {
  std::atomic<std::int64_t> now{0}, peak{0};
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

// Runs `parse` and returns the text of the exception it threw, or "" if it returned. The measured
// time is the best of a few tries, because other processes also evict this one's caches.
template <typename Parse>
std::string within_budget(std::size_t input_bytes, const std::string& name, const Parse& parse) {
  const double seconds_allowed = kSlowBuild * (1e-6 * static_cast<double>(input_bytes) + 0.010);
  const std::int64_t bytes_allowed =
      64 * static_cast<std::int64_t>(input_bytes) + (std::int64_t{16} << 20);
  std::string problem;
  double seconds = 0;
  std::int64_t bytes = 0;
  constexpr int kTries = 9;
  for (int i = 0; i < kTries; ++i) {
    HeapUse& use = heap_use();
    const std::int64_t before = use.now;
    use.peak = before;
    const double start = cpu_seconds();
    try {
      parse();
    } catch (const std::exception& thrown) {
      problem = thrown.what();
    }
    const double took = cpu_seconds() - start;
    seconds = i == 0 ? took : std::min(seconds, took);
    bytes = std::max(bytes, use.peak - before);
    if (seconds <= seconds_allowed || seconds > 50 * seconds_allowed) break;
  }
  EXPECT_LE(seconds, seconds_allowed) << name << ": " << input_bytes << " bytes";
  EXPECT_LE(bytes, bytes_allowed) << name << ": " << input_bytes << " bytes";
  return problem;
}

}  // namespace shoal::testing

#ifdef SHOAL_TEST_COUNTS_MEMORY
namespace {
void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  auto& use = shoal::testing::heap_use();
  const std::int64_t now = use.now += static_cast<std::int64_t>(::malloc_usable_size(block));
  std::int64_t seen = use.peak;
  while (seen < now && !use.peak.compare_exchange_weak(seen, now)) {
  }
  return block;
}
void uncounted(void* block) noexcept {
  if (block == nullptr) return;
  shoal::testing::heap_use().now -= static_cast<std::int64_t>(::malloc_usable_size(block));
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
