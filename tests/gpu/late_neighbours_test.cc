// A failed rank ends at once, while its neighbour has not noticed yet and still copies into its
// memory. These copies must not damage other memory. The ranks are on emulated GPUs, whose copies
// can be delayed, and use levels: ranks 0 and 1 on one host, 2 on another. So only rank 0 copies
// from device to device, into rank 1's memory.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "gpu/on_gpu.h"
#include "support/calls.h"
#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/device_communicator.h"

// The argument is a cudaMemcpyKind. Defined only where the GPU is emulated
// (support/emulated_gpu/copies.cc).
extern "C" void shoal_emulated_gpu_before_copies(void (*told)(int)) __attribute__((weak));
extern "C" void shoal_emulated_gpu_before_close(void (*told)()) __attribute__((weak));

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::int64_t kCount = 40'000, kSlices = 4, kBytes = kCount * 4;
constexpr int kInDevice = 3;  // cudaMemcpyDeviceToDevice

// State of this process.
std::atomic<bool> armed = false;
Store* told = nullptr;

void hold_up(int kind) {
  if (kind != kInDevice || !armed.exchange(false)) return;
  told->set("held up", "yes");
  (void)told->get("go on", Deadline::in_seconds(30));
}

void meet(const World& world, Store& store, const std::string& where) {
  store.set(where + std::to_string(world.rank), "here");
  for (int peer = 0; peer < world.size; ++peer)
    (void)store.get(where + std::to_string(peer), Deadline::in_seconds(30));
}

struct Rank {
  // Each thread has its own device, so freeing memory does not wait for another rank's streams.
  Rank(World world, Store& store, bool threads)
      : device(Device::cuda(static_cast<std::int16_t>(threads ? world.rank : 0))), stream(device) {
    world.host = world.rank < 2 ? "a" : "b";
    communicator = std::make_unique<device::DeviceCommunicator>(
        make_communicator(world, store, shoal::test::with_deadline(60)),
        device::DeviceCommunicator::Options{.stream = stream.view(),
                                            .host = world.host,
                                            .deadline_seconds = 60,
                                            .slice_bytes = kBytes / kSlices,
                                            .levels_from = 1});
    send = Buffer(communicator->memory_resource(), kBytes, MemoryTag::gradients);
    recv = Buffer(communicator->memory_resource(), kBytes, MemoryTag::gradients);
    sum()->wait();
    communicator->host().barrier()->wait();
  }
  WorkPtr sum() {
    return communicator->all_reduce(send.data(), recv.data(), kCount, DType::f32, ReduceOp::max);
  }
  // Frees the buffers and destroys the Communicator. Returns the address that recv had.
  const std::byte* end() {
    const auto* const was = static_cast<const std::byte*>(recv.data());
    send.reset();
    recv.reset();
    communicator.reset();
    return was;
  }

  Device device;
  OwnedStream stream;
  std::unique_ptr<Communicator> communicator;
  Buffer send, recv;
};

// Takes as much memory from the driver as memory_resource() had, and therefore the same address if
// that was freed.
class Next {
 public:
  explicit Next(const Rank& rank)
      : device_(rank.device),
        stream_(rank.stream.view()),
        access_(device::make_cuda_peer_access(device_)) {
    base_ = static_cast<std::byte*>(access_->allocate(kSize));
    backend_.fill(base_, kByte, kSize, stream_);
    backend_.synchronize(stream_);
  }
  ~Next() { access_->deallocate(base_); }
  Next(const Next&) = delete;
  Next& operator=(const Next&) = delete;
  bool holds(const std::byte* pointer) const { return base_ <= pointer && pointer < base_ + kSize; }
  bool is_untouched() const {
    std::vector<std::uint8_t> bytes(kSize);
    backend_.copy(bytes.data(), base_, kSize, stream_);
    backend_.synchronize(stream_);
    return std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == kByte; });
  }

 private:
  static constexpr std::size_t kSize = device::ShareableMemory::kSegmentBytes;
  static constexpr int kByte = 0x11;
  Device device_;
  Stream stream_;
  DeviceBackend& backend_ = device_backend(DeviceType::cuda);
  std::unique_ptr<device::PeerAccess> access_;
  std::byte* base_ = nullptr;
};

// Ranks are threads of one process, or processes.
class LateNeighbours : public ::testing::TestWithParam<bool> {
 protected:
  // Returns the errors that ranks threw; empty: none.
  static std::vector<std::string> run(void (*body)(const World&, Store&, bool)) {
    shoal_emulated_gpu_before_copies(hold_up);
    if (!GetParam()) {
      std::vector<std::string> errors;
      for (const auto& outcome :
           shoal::test::on_gpu(3, 60, [&](const World& w, Store& s) { body(w, s, false); }))
        errors.push_back(outcome.exit_status == 0 ? "" : "failed: " + outcome.error);
      return errors;
    }
    const auto outcomes = shoal::test::on_gpu(1, 60, [&](const World&, Store&) {
      ::setenv("SHOAL_EMULATED_GPUS", "3", 1);
      shoal::test::run_thread_ranks(3, [&](const World& w, Store& s) { body(w, s, true); });
    });
    std::vector<std::string> errors;
    for (const auto& outcome : outcomes)
      errors.push_back(outcome.exit_status == 0 ? "" : "failed: " + outcome.error);
    return errors;
  }
};

#define SHOAL_NEEDS_EMULATED_GPUS() \
  SHOAL_NEEDS_A_NETWORK();          \
  if (!shoal_emulated_gpu_before_copies) GTEST_SKIP() << "needs an emulated GPU"

void abort_while_a_copy_is_held_up(const World& world, Store& store, bool threads) {
  Rank rank(world, store, threads);
  if (world.rank == 0) {
    told = &store;
    armed = true;
  }
  WorkPtr work = rank.sum();
  if (world.rank != 1) {
    EXPECT_THAT(error_text([&] { work->wait(); }), HasSubstr("rank 1 aborted: enough"));
    meet(world, store, "all over ");
  } else {
    (void)store.get("held up", Deadline::in_seconds(30));
    rank.communicator->abort("enough");
    EXPECT_THAT(error_text([&] { work->wait(); }), HasSubstr("rank 1 aborted: enough"));
    const void* const was = rank.recv.data();
    rank.recv.reset();
    rank.recv = Buffer(rank.communicator->memory_resource(), kBytes, MemoryTag::gradients);
    EXPECT_NE(rank.recv.data(), was) << "rank 0 still writes to that memory";
    work.reset();  // the work would keep the communicator's memory
    const std::byte* const ended = rank.end();
    const Next next(rank);
    EXPECT_FALSE(next.holds(ended)) << "rank 0 still writes to the freed memory";
    store.set("go on", "yes");
    meet(world, store, "all over ");
    EXPECT_TRUE(next.is_untouched()) << "rank 0 wrote to memory that was reused";
  }
  if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "see above");
}

TEST_P(LateNeighbours, DoNotWriteIntoReusedMemory) {
  SHOAL_NEEDS_EMULATED_GPUS();
  EXPECT_THAT(run(abort_while_a_copy_is_held_up), Each(""));
}

// Without a failure, the driver gets all memory back.
void end_well(const World& world, Store& store, bool threads) {
  Rank rank(world, store, threads);
  const std::byte* const was = rank.end();
  meet(world, store, "all over ");
  EXPECT_TRUE(Next(rank).holds(was)) << "rank " << world.rank << " has kept the memory";
  if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "see above");
}

TEST_P(LateNeighbours, FreeAllMemoryInTheEnd) {
  SHOAL_NEEDS_EMULATED_GPUS();
  EXPECT_THAT(run(end_well), Each(""));
}

// A process frees exported memory only when no other process has it open. It waits for a rank that
// closes it late, here for at most a second, and must not end before.
void close_late(const World& world, Store& store, bool threads) {
  static std::atomic<bool> ended;
  Rank rank(world, store, threads);
  told = &store;
  if (world.rank == 1)
    shoal_emulated_gpu_before_close([] {
      try {
        ended = ended || !told->get("rank 0 has ended", Deadline::in_seconds(1)).empty();
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch): rank 0 waits, as it should
      }
    });
  rank.end();
  if (world.rank == 0) store.set("rank 0 has ended", "yes");
  meet(world, store, "all over ");
  EXPECT_FALSE(ended) << "rank 0 ended while rank 1 had its memory open";
  if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "see above");
}

TEST_P(LateNeighbours, CloseMemoryBeforeItsOwnerFreesIt) {
  SHOAL_NEEDS_EMULATED_GPUS();
  if (GetParam()) GTEST_SKIP() << "threads need not open each other's memory";
  EXPECT_THAT(run(close_late), Each(""));
}

INSTANTIATE_TEST_SUITE_P(Ranks, LateNeighbours, ::testing::Values(true, false),
                         [](const auto& threads) {
                           return threads.param ? "threads" : "processes";
                         });

}  // namespace
}  // namespace shoal::collectives
