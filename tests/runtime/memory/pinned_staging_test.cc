// Pinned bytes of steps that the host has queued ahead of a device. Emulated GPUs run as late as
// possible.
#include "shoal/runtime/memory/pinned_staging.h"

#include <cstring>
#include <set>
#include <vector>

#include "support/little_time.h"
#include <gtest/gtest.h>

namespace shoal {
namespace {

struct Place {
  Device device = device_backend(DeviceType::cuda).count() > 0 ? Device::cuda(0) : Device::cpu();
  DeviceBackend& backend = device_backend(device.type);
  OwnedStream owner{device};
  Stream stream = owner.view();
  std::unique_ptr<MemoryResource> memory = make_device_memory(device);
};

// Bytes that a step wrote for the device must not change before the device has read them.
TEST(PinnedStaging, KeepsBytesThatTheDeviceHasNotRead) {
  constexpr std::size_t kBytes = 3000, kSteps = 40;
  Place at;
  const Buffer all(*at.memory, kBytes * kSteps, MemoryTag::data, at.stream);
  const auto pinned = make_pinned_memory();
  const Buffer back(*pinned, kBytes * kSteps, MemoryTag::data);
  PinnedStaging staging(at.device);
  for (std::size_t step = 0; step < kSteps; ++step) {
    for (std::size_t part = 0; part < 3; ++part) {
      std::byte* const from = staging.place(kBytes / 3);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(from) % 64, 0u);
      std::memset(from, static_cast<int>(step + part), kBytes / 3);
      at.backend.copy(static_cast<std::byte*>(all.data()) + step * kBytes + part * (kBytes / 3),
                      from, kBytes / 3, at.stream);
    }
    staging.mark(at.stream);
  }
  at.backend.copy(back.data(), all.data(), back.size(), at.stream);
  at.backend.synchronize(at.stream);
  const auto* const values = static_cast<const unsigned char*>(back.data());
  for (std::size_t i = 0; i < back.size(); ++i)
    ASSERT_EQ(values[i], i / kBytes + i % kBytes / (kBytes / 3)) << i;
}

// Without a mark all blocks are kept. After a mark that the device has passed, they are reused.
TEST(PinnedStaging, ReusesBlocksAfterTheirMark) {
  Place at;
  PinnedStaging staging(at.device);
  const auto places = [&](std::size_t bytes) {
    std::set<const std::byte*> all;
    for (int i = 0; i < 100; ++i) {
      std::byte* const place = staging.place(bytes);
      std::memset(place, i, bytes);
      all.insert(place);
    }
    EXPECT_EQ(all.size(), 100u) << "no mark was set";
    staging.mark(at.stream);
    at.backend.synchronize(at.stream);
  };
  for (const std::size_t bytes : {1000u, 40'000u}) {  // smaller than a block, and larger
    places(bytes);
    const std::int64_t before = at.backend.statistics().allocations;
    for (int turn = 0; turn < 3; ++turn) places(bytes);
    EXPECT_EQ(at.backend.statistics().allocations, before) << "reuse must not allocate";
  }
}

// Each step has so much device work that even a real GPU falls behind.
TEST(PinnedStaging, DoesNotRunAheadOfItsLimit) {
  Place at;
  if (at.device.is_cpu()) GTEST_SKIP() << "no CUDA device";
  const std::size_t bytes = std::size_t{1} << (testing::has_little_time() ? 12 : 28);
  const Buffer to(*at.memory, bytes, MemoryTag::data, at.stream);
  PinnedStaging staging(at.device, 3);
  const std::int64_t before = at.backend.statistics().synchronizations;
  for (std::int64_t step = 0; step < 10; ++step) {
    for (int i = 0; i < 8; ++i) at.backend.fill(to.data(), i, bytes, at.stream);
    at.backend.copy(to.data(), staging.place(64), 64, at.stream);
    EXPECT_LE(at.backend.statistics().synchronizations - before,
              std::max<std::int64_t>(step - 2, 0));
    staging.mark(at.stream);
  }
  EXPECT_GT(at.backend.statistics().synchronizations, before);
}

// A device's blocks are allocated from the given memory and counted there.
TEST(PinnedStaging, AllocatesFromTheGivenMemory) {
  const Place at;
  const auto pinned = make_pinned_memory();
  CountingMemory counted(*pinned);
  {
    PinnedStaging staging(at.device, 3, &counted);
    std::memset(staging.place(100'000), 1, 100'000);
    const auto held = static_cast<std::int64_t>(PoolMemory::rounded(100'032));
    EXPECT_EQ(counted.usage(MemoryTag::data).current, at.device.is_cpu() ? 0 : held);
    EXPECT_EQ(counted.total().peak, counted.usage(MemoryTag::data).current);
    staging.mark(at.stream);
  }
  EXPECT_EQ(counted.total().current, 0);
}

}  // namespace
}  // namespace shoal
