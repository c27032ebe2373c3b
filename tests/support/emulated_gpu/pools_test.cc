// Tests stream-ordered memory: it is poisoned in stream order, and no other stream gets it before
// its free has run.
#include "rig.h"

namespace shoal::emulated_gpu {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;  // the device has 16 MiB

class Pools : public ::testing::Test {
 protected:
  void SetUp() override {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    CUDA(cudaMemPoolCreate(&pool_, &properties));
    std::uint64_t everything = UINT64_MAX;
    CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &everything));
  }
  void TearDown() override {
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemPoolTrimTo(pool_, 0));
    std::size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(free, total) << "a test did not free its memory";
  }
  int* allocate(std::size_t bytes, cudaStream_t stream) {
    void* made = nullptr;
    status_ = cudaMallocFromPoolAsync(&made, bytes, pool_, stream);
    return static_cast<int*>(made);
  }
  static std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    CUDA(cudaMemGetInfo(&free, &total));
    return free;
  }
  cudaMemPool_t pool_ = nullptr;
  cudaError_t status_ = cudaSuccess;
};

TEST_F(Pools, FreshAndFreedMemoryIsPoisoned) {
  const OwnStream stream;
  int* const first = allocate(1000, stream);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
  int seen[2] = {};
  int* const out = seen;
  // Reads as a kernel would that was launched too late, or in another stream.
  const auto read = [&](cudaStream_t on) {
    CUDA(launch(on, [=] { *out = peek(first); }, {}));
    CUDA(cudaStreamSynchronize(on));
    return seen[0];
  };
  EXPECT_EQ(read(stream), kFresh);
  CUDA(set(first, 5, stream));
  EXPECT_EQ(read(stream), 5);
  CUDA(cudaFreeAsync(first, stream));
  const OwnStream other;
  EXPECT_EQ(read(other), 5) << "the free has not run yet";
  EXPECT_EQ(read(stream), kFreed);
  EXPECT_CUDA(cudaErrorInvalidValue, cudaFreeAsync(first, stream));
  EXPECT_CUDA(cudaErrorInvalidValue, copy(out, first, 4, stream));
}

TEST_F(Pools, OnlyItsStreamReusesFreedMemoryBeforeItsTurn) {
  const OwnStream stream, other;
  int* const first = allocate(1000, stream);
  CUDA(set(first, 1, stream));
  CUDA(cudaFreeAsync(first, stream));
  int* const elsewhere = allocate(1000, other);
  EXPECT_NE(elsewhere, first);
  int* const again = allocate(1000, stream);
  EXPECT_EQ(again, first);
  int value = 0;
  CUDA(copy(&value, again, sizeof value, stream));
  EXPECT_EQ(value, kFresh) << "the new owner must not see the old owner's values";
  CUDA(cudaFreeAsync(again, stream));
  CUDA(cudaStreamSynchronize(stream));
  int* const late = allocate(1000, other);
  EXPECT_EQ(late, first);
  CUDA(cudaFreeAsync(elsewhere, other));
  CUDA(cudaFreeAsync(late, other));
}

TEST_F(Pools, MemoryRunsOut) {
  const OwnStream stream, other;
  EXPECT_EQ(allocate(17 * kMiB, stream), nullptr);
  EXPECT_EQ(status_, cudaErrorMemoryAllocation);
  int* const large = allocate(10 * kMiB, stream);
  ASSERT_NE(large, nullptr);
  EXPECT_LT(free_bytes(), 6 * kMiB);
  EXPECT_EQ(allocate(10 * kMiB, other), nullptr);
  CUDA(cudaFreeAsync(large, stream));
  EXPECT_EQ(allocate(10 * kMiB, other), nullptr) << "its free has not run yet";
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_LT(free_bytes(), 6 * kMiB) << "the pool keeps it";
  void* direct = nullptr;
  EXPECT_CUDA(cudaErrorMemoryAllocation, cudaMalloc(&direct, 10 * kMiB));
  int* const whole = allocate(12 * kMiB, other);  // the pool's pieces and more memory
  EXPECT_NE(whole, nullptr);
  CUDA(cudaFreeAsync(whole, other));
  CUDA(cudaStreamSynchronize(other));
  CUDA(cudaMemPoolTrimTo(pool_, 0));
  CUDA(cudaMalloc(&direct, 10 * kMiB));
  CUDA(cudaFree(direct));
}

TEST_F(Pools, APoolWithoutThresholdReleasesItsMemory) {
  const OwnStream stream;
  std::uint64_t nothing = 0;
  CUDA(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &nothing));
  const std::size_t before = free_bytes();
  CUDA(cudaFreeAsync(allocate(kMiB, stream), stream));
  EXPECT_LT(free_bytes(), before);
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Pools, PinnedAndPageableMemoryAreDistinguished) {
  const Ints device(1), pinned(1, Ints::pinned);
  const int plain = 0;
  cudaPointerAttributes is{};
  CUDA(cudaPointerGetAttributes(&is, device.data));
  EXPECT_EQ(is.type, cudaMemoryTypeDevice);
  CUDA(cudaPointerGetAttributes(&is, pinned.data));
  EXPECT_EQ(is.type, cudaMemoryTypeHost);
  CUDA(cudaPointerGetAttributes(&is, &plain));
  EXPECT_EQ(is.type, cudaMemoryTypeUnregistered);
}

}  // namespace
}  // namespace shoal::emulated_gpu
