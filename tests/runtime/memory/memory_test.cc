#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/memory/limited_memory.h"
#include "shoal/runtime/memory/mebibytes.h"
#include "shoal/runtime/memory/memory_resource.h"

// These tests need malloc to return null, where sanitizers would end the program.
// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers' own names.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
// NOLINTEND(bugprone-reserved-identifier)

namespace shoal {
namespace {

using ::testing::HasSubstr;

// Allocates host memory up to a limit, and checks that every block is freed with its original
// arguments.
class StrictMemory final : public MemoryResource {
 public:
  explicit StrictMemory(std::size_t limit) : limit_(limit), host_(make_host_memory()) {}
  ~StrictMemory() override { EXPECT_TRUE(given_.empty()) << "blocks were never freed"; }
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override {
    const std::scoped_lock lock(mutex_);
    if (used_ + bytes > limit_)
      throw_error(ErrorCode::out_of_memory, "strict memory: no room for {} bytes", bytes);
    void* pointer = host_->allocate(bytes, tag, stream);
    given_[pointer] = {bytes, tag};
    used_ += bytes;
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                  Stream stream) noexcept override {
    const std::scoped_lock lock(mutex_);
    const auto found = given_.find(pointer);
    ASSERT_NE(found, given_.end()) << "the block was not allocated here";
    EXPECT_EQ(found->second.first, bytes);
    EXPECT_EQ(found->second.second, tag);
    given_.erase(found);
    used_ -= bytes;
    host_->deallocate(pointer, bytes, tag, stream);
  }
  Device device() const override { return Device::cpu(); }
  std::string name() const override { return "strict"; }
  std::size_t blocks() const { return given_.size(); }

 private:
  std::size_t limit_, used_ = 0;
  std::mutex mutex_;
  std::map<void*, std::pair<std::size_t, MemoryTag>> given_;
  std::unique_ptr<MemoryResource> host_;
};

TEST(HostMemory, IsAlignedAndWritable) {
  const auto memory = make_host_memory();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{64},
                                  std::size_t{1000}, (std::size_t{4} << 20) + 1}) {
    const Buffer buffer(*memory, bytes, MemoryTag::data);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    std::memset(buffer.data(), 0x5a, bytes);
    EXPECT_EQ(buffer.size(), bytes);
  }
}

TEST(HostMemory, OutOfMemoryNamesBytesAndTag) {
  const auto memory = make_host_memory();
  for (const std::size_t bytes : {std::size_t{1} << 62, SIZE_MAX, SIZE_MAX - 100}) try {
      const Buffer buffer(*memory, bytes, MemoryTag::optimizer);
      FAIL() << bytes << " bytes were allocated";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_THAT(error.what(), HasSubstr(mebibytes(bytes) + " of optimizer"));
    }
}

TEST(PoolMemory, RoundsUpByLessThanAQuarter) {
  EXPECT_EQ(PoolMemory::rounded(1), 256u);
  EXPECT_EQ(PoolMemory::rounded(256), 256u);
  EXPECT_EQ(PoolMemory::rounded(257), 320u);
  EXPECT_EQ(PoolMemory::rounded(512), 512u);
  for (std::size_t bytes = 257; bytes < 100'000; bytes += 37) {
    const std::size_t size = PoolMemory::rounded(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_LT(static_cast<double>(size), 1.25 * static_cast<double>(bytes));
    EXPECT_EQ(PoolMemory::rounded(size), size) << "a size class is its own class";
  }
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 2})
    EXPECT_GE(PoolMemory::rounded(bytes), bytes) << "the size must not wrap around";
}

TEST(PoolMemory, ReusesBlocksOfOneClassAndTrims) {
  StrictMemory upstream(1 << 20);
  PoolMemory pool(upstream);
  const void* first = nullptr;
  {
    const Buffer buffer(pool, 1000, MemoryTag::activations);
    first = buffer.data();
    EXPECT_EQ(pool.cached_bytes(), 0u);
  }
  EXPECT_EQ(pool.cached_bytes(), 1024u);
  {
    const Buffer again(pool, 900, MemoryTag::gradients);  // the same class, another tag
    EXPECT_EQ(again.data(), first);
    const Buffer other(pool, 5000, MemoryTag::data);
    EXPECT_NE(other.data(), first);
    EXPECT_EQ(upstream.blocks(), 2u);
  }
  EXPECT_EQ(pool.cached_bytes(), 1024u + 5120u);
  pool.trim();  // StrictMemory checks that the blocks are freed under their first tag
  EXPECT_EQ(pool.cached_bytes(), 0u);
  EXPECT_EQ(upstream.blocks(), 0u);
}

TEST(PoolMemory, StreamsDoNotShareFreedBlocks) {
  const auto host = make_host_memory();
  PoolMemory pool(*host);
  int a = 0, b = 0;
  const Stream first{Device::cpu(), &a}, second{Device::cpu(), &b};
  void* pointer = pool.allocate(300, MemoryTag::data, first);
  pool.deallocate(pointer, 300, MemoryTag::data, first);
  void* elsewhere = pool.allocate(300, MemoryTag::data, second);
  EXPECT_NE(elsewhere, pointer) << "work queued on the first stream may still use the block";
  void* same = pool.allocate(300, MemoryTag::data, first);
  EXPECT_EQ(same, pointer);
  pool.deallocate(elsewhere, 300, MemoryTag::data, second);
  pool.deallocate(same, 300, MemoryTag::data, first);
}

TEST(PoolMemory, TrimsBeforeGivingUp) {
  StrictMemory upstream(10'000);
  PoolMemory pool(upstream);
  {
    const Buffer small(pool, 6000, MemoryTag::data);
  }
  EXPECT_GT(pool.cached_bytes(), 0u);
  {
    const Buffer large(pool, 8000, MemoryTag::data);
  }  // fits only once the other block is freed
  EXPECT_EQ(upstream.blocks(), 1u);
  try {
    const Buffer huge(pool, 20'000, MemoryTag::data);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  const Buffer still(pool, 100, MemoryTag::data);
  EXPECT_TRUE(still);
}

TEST(CountingMemory, CountsByTagAndPeaks) {
  const auto host = make_host_memory();
  CountingMemory memory(*host);
  {
    const Buffer a(memory, 100, MemoryTag::parameters);
    {
      const Buffer b(memory, 50, MemoryTag::gradients);
      EXPECT_EQ(memory.usage(MemoryTag::gradients).current, 50);
    }
    const Buffer c(memory, 20, MemoryTag::gradients);
    EXPECT_EQ(memory.usage(MemoryTag::gradients).current, 20);
    EXPECT_EQ(memory.usage(MemoryTag::gradients).peak, 50);
    EXPECT_EQ(memory.total().current, 120);
    EXPECT_EQ(memory.total().peak, 150);
    memory.reset_peaks();
    EXPECT_EQ(memory.total().peak, 120);
    memory.count_external(1000, MemoryTag::communication);
    EXPECT_EQ(memory.usage(MemoryTag::communication).current, 1000);
    EXPECT_EQ(memory.total().peak, 1120);
    memory.count_external(-1000, MemoryTag::communication);
  }
  EXPECT_EQ(memory.total().current, 0);
  EXPECT_EQ(memory.allocations(), 3);
}

TEST(CountingMemory, UnderAPoolEveryTagReturnsToZero) {
  const auto host = make_host_memory();
  CountingMemory held(*host);
  {
    PoolMemory pool(held);
    {
      const Buffer a(pool, 1000, MemoryTag::activations);
    }
    {
      const Buffer b(pool, 1000, MemoryTag::gradients);
    }
    EXPECT_EQ(held.total().current, 1024) << "the pool keeps its block";
  }
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag)
    EXPECT_EQ(held.usage(static_cast<MemoryTag>(tag)).current, 0)
        << to_string(static_cast<MemoryTag>(tag));
}

TEST(CountingMemory, OutOfMemoryReportsEachTagOnce) {
  StrictMemory strict(8 << 20);
  CountingMemory held(strict);
  PoolMemory pool(held);
  CountingMemory asked(pool);
  EXPECT_EQ(asked.describe(), "nothing");
  const Buffer a(asked, 3 << 20, MemoryTag::parameters);
  const Buffer b(asked, 1 << 20, MemoryTag::activations);
  EXPECT_EQ(asked.describe(), "parameters 3.0 MiB, activations 1.0 MiB");
  try {
    const Buffer c(asked, 6 << 20, MemoryTag::optimizer);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_EQ(error.message(),
              "strict memory: no room for 6291456 bytes; held are parameters 3.0 MiB, "
              "activations 1.0 MiB");
  }
}

TEST(PinnedMemory, IsHostMemoryThatAPoolMayKeep) {
  const auto pinned = make_pinned_memory();
  EXPECT_TRUE(pinned->device().is_cpu());
  EXPECT_EQ(pinned->name(), device_backend(DeviceType::cuda).count() > 0 ? "pinned host" : "host");
  PoolMemory pool(*pinned);
  void* first = nullptr;
  for (int turn = 0; turn < 2; ++turn) {
    const Buffer buffer(pool, 5000, MemoryTag::data);
    std::memset(buffer.data(), turn, 5000);
    EXPECT_TRUE(first == nullptr || buffer.data() == first);
    first = buffer.data();
  }
}

TEST(DeviceMemory, UnderAPoolAllocatesFromTheDriverOnlyOnce) {
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  if (cuda.count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto memory = make_device_memory(Device::cuda(0));
  PoolMemory pool(*memory);
  const auto use = [&](Stream stream) {
    Buffer a(pool, 100'000, MemoryTag::activations, stream);
    const Buffer b(pool, 5000, MemoryTag::workspace, stream);
    cuda.fill(a.data(), 1, a.size(), stream);
    a.reset();
    const Buffer c(pool, 100'000, MemoryTag::gradients, stream);
    cuda.fill(c.data(), 2, c.size(), stream);
  };
  {
    const OwnedStream stream(Device::cuda(0));
    for (const Stream where : {stream.view(), Stream{}}) {
      use(where);
      DeviceStatistics expected = cuda.statistics();
      for (int turn = 0; turn < 10; ++turn) use(where);
      if (!where.handle) expected.synchronizations += 2 * 10;  // unordered fills finish at once
      EXPECT_EQ(cuda.statistics(), expected);
    }
  }  // the stream ends before the pool frees its blocks
  pool.trim();
  EXPECT_EQ(pool.cached_bytes(), 0u);
}

TEST(CountingMemory, AFailedAllocationIsNotCounted) {
  StrictMemory strict(100);
  CountingMemory memory(strict);
  EXPECT_THROW(Buffer(memory, 1000, MemoryTag::data), Error);
  EXPECT_EQ(memory.total().peak, 0);
  EXPECT_EQ(memory.allocations(), 0);
}

TEST(LimitedMemory, RefusesWithItsNumbers) {
  const auto host = make_host_memory();
  LimitedMemory limited(*host, {1000, "the test's"});
  Buffer first(limited, 600, MemoryTag::data);
  try {
    const Buffer second(limited, 401, MemoryTag::gradients);
    FAIL() << "401 more of 1000 bytes were allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_THAT(error.what(),
                HasSubstr("host memory: no room for 0.000382 MiB of gradients: 0.000381 MiB of "
                          "0.000954 MiB are available (the test's); use a smaller batch"));
  }
  EXPECT_THROW(Buffer(limited, SIZE_MAX, MemoryTag::data), Error);
  {
    const Buffer all(limited, 400, MemoryTag::data);
  }
  first.reset();
  EXPECT_EQ(limited.in_use(), 0);
}

TEST(LimitedMemory, LargeBlocksCountWithTheirWholePages) {
  constexpr std::int64_t kMiB = 1 << 20;
  const auto host = make_host_memory();
  LimitedMemory limited(*host, {9 * kMiB, ""});
  Buffer large(limited, 5 * kMiB + 1, MemoryTag::data);
  EXPECT_EQ(limited.in_use(), 6 * kMiB);
  EXPECT_THROW(Buffer(limited, 3 * kMiB + 1, MemoryTag::data), Error);
  const Buffer small(limited, 3 * kMiB - 5, MemoryTag::data);
  EXPECT_EQ(limited.in_use(), 9 * kMiB - 5);
  large.reset();
  EXPECT_EQ(limited.in_use(), 3 * kMiB - 5);
}

TEST(LimitedMemory, RefusedAllocationsAreNotInUse) {
  StrictMemory strict(100);
  LimitedMemory limited(strict, {1000, ""});
  EXPECT_THROW(Buffer(limited, 500, MemoryTag::data), Error);
  EXPECT_EQ(limited.in_use(), 0);
}

TEST(LimitedMemory, APoolFreesItsCacheWhenMemoryIsShort) {
  const auto host = make_host_memory();
  LimitedMemory limited(*host, {10'000, ""});
  PoolMemory pool(limited);
  {
    const Buffer kept(pool, 8192, MemoryTag::data);
  }
  EXPECT_EQ(limited.in_use(), 8192);
  const Buffer other(pool, 4096, MemoryTag::data);
  EXPECT_EQ(limited.in_use(), 4096);
}

// A communicator's memory reduces what is left for others.
TEST(LimitedMemory, MemoryFromElsewhereCounts) {
  const auto host = make_host_memory();
  LimitedMemory limited(*host, {10'000, ""});
  PoolMemory pool(limited);
  CountingMemory asked(pool), memory(static_cast<MemoryResource&>(asked));
  limited.count_too([&] { return memory.total().current - asked.total().current; });
  memory.count_external(9'900, MemoryTag::gradients);
  EXPECT_EQ(limited.in_use(), 9'900);
  EXPECT_THROW(Buffer(memory, 100, MemoryTag::data), Error);
  memory.count_external(-9'900, MemoryTag::gradients);
  EXPECT_EQ(limited.in_use(), 0);
  const Buffer there(memory, 100, MemoryTag::data);
  EXPECT_EQ(limited.in_use(), 256);  // the pool's smallest block
}

TEST(MemoryResources, AreThreadSafe) {
  const auto host = make_host_memory();
  CountingMemory held(*host);
  PoolMemory pool(held);
  CountingMemory memory(pool);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&memory, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<Buffer> mine;
      for (int i = 0; i < 500; ++i) {
        if (mine.size() > 10) mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(random() % 10));
        mine.emplace_back(memory, 1 + random() % 3000,
                          static_cast<MemoryTag>(random() % kMemoryTags));
        std::memset(mine.back().data(), t, mine.back().size());
      }
      for (const Buffer& buffer : mine)
        for (std::size_t i = 0; i < buffer.size(); ++i)
          ASSERT_EQ(static_cast<char*>(buffer.data())[i], t) << "two owners of one block";
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(memory.total().current, 0);
  EXPECT_EQ(held.total().current, static_cast<std::int64_t>(pool.cached_bytes()));
}

TEST(Buffer, MovesOwnership) {
  StrictMemory strict(10'000);
  Buffer a(strict, 100, MemoryTag::data);
  void* data = a.data();
  Buffer b = std::move(a);
  // NOLINTNEXTLINE(bugprone-use-after-move): the moved-from state is guaranteed
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.size(), 0u);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.tag(), MemoryTag::data);
  Buffer c(strict, 50, MemoryTag::gradients);
  c = std::move(b);  // frees c's own block
  EXPECT_EQ(strict.blocks(), 1u);
  EXPECT_EQ(c.data(), data);
  Buffer& self = c;
  c = std::move(self);
  EXPECT_EQ(c.data(), data);
  c.reset();
  EXPECT_FALSE(c);
  EXPECT_EQ(strict.blocks(), 0u);
  const Buffer empty(strict, 0, MemoryTag::data);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(strict.blocks(), 0u);
}

}  // namespace
}  // namespace shoal
