// A rank's waits while its device, or its rail, has a slice of an operation by levels. The rank
// waits while there is progress, reports an error when there is none, and drives messages
// meanwhile. The test delays the emulated GPU's copies.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpu/on_gpu.h"
#include "support/calls.h"
#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/runtime/base/clock.h"

// The argument is a cudaMemcpyKind. Defined only where the GPU is emulated
// (support/emulated_gpu/copies.cc).
extern "C" void shoal_emulated_gpu_before_copies(void (*told)(int)) __attribute__((weak));
extern "C" void shoal_emulated_gpu_hold_copies(bool (*may)(int)) __attribute__((weak));

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Four slices of a rank's share of an all_reduce.
constexpr std::int64_t kCount = 4'096, kSlices = 4, kSliceBytes = kCount * 4 / 2 / kSlices;
constexpr double kDeadline = 60;
constexpr int kToHost = 2;  // cudaMemcpyDeviceToHost

// State of this process: completed copies to the host, and whether another one may run.
std::atomic<int> folded = 0;
std::function<bool()> may_fold;
std::atomic<bool> asked = false;

// Ranks 0 and 1 are on one host, 2 and 3 on the other.
struct Rank {
  // `deadline` applies only to the device's communicator.
  Rank(World world, Store& store, double deadline = kDeadline)
      : stream(shoal::test::device_of(world)) {
    world.host = world.rank < 2 ? "a" : "b";
    auto host = make_communicator(world, store, shoal::test::with_deadline(kDeadline));
    host->barrier()->wait();  // so that a late start does not count
    communicator = std::make_unique<device::DeviceCommunicator>(
        std::move(host), device::DeviceCommunicator::Options{.stream = stream.view(),
                                                             .host = world.host,
                                                             .deadline_seconds = deadline,
                                                             .slice_bytes = kSliceBytes,
                                                             .levels_from = 1});
    buffer = Buffer(communicator->memory_resource(), kCount * 4, MemoryTag::gradients);
    sum()->wait();
    communicator->host().barrier()->wait();
  }
  WorkPtr sum() {
    return communicator->all_reduce(buffer.data(), buffer.data(), kCount, DType::f32,
                                    ReduceOp::max);
  }
  // Delays copies after this call.
  void hold(std::function<bool()> may) {
    folded = 0;
    may_fold = std::move(may);
    shoal_emulated_gpu_before_copies([](int kind) { folded += kind == kToHost; });
    shoal_emulated_gpu_hold_copies([](int kind) {
      if (kind != kToHost) return true;
      asked = true;
      return may_fold();
    });
  }

  OwnedStream stream;
  std::unique_ptr<Communicator> communicator;
  Buffer buffer;
};

// Tests the work, so that the caller sets no deadline.
void test_until_done(Work& work) {
  while (!work.test()) shoal::test::sleep_seconds(0.001);
}

class LevelWaits : public ::testing::Test {
 protected:
  static void run(void (*body)(const World&, Store&)) {
    SHOAL_NEEDS_A_NETWORK();
    if (!shoal_emulated_gpu_hold_copies) GTEST_SKIP() << "needs an emulated GPU";
    shoal::test::expect_on_gpu(4, 90, [&](const World& world, Store& store) {
      body(world, store);
      if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "see above");
    });
  }
};

// Each slice is within the deadline, but all together take longer.
TEST_F(LevelWaits, AsLongAsTheDeviceMakesProgress) {
  run([](const World& world, Store& store) {
    constexpr double kLater = 0.6;
    Rank rank(world, store, 1.5);
    if (world.rank == 1) {
      const auto began = Clock::now();
      rank.hold([began] { return seconds_since(began) > kLater * (folded + 1); });
    }
    const WorkPtr work = rank.sum();
    test_until_done(*work);
    if (world.rank == 1) {
      EXPECT_EQ(folded, kSlices);
    }
  });
}

// The rank whose device stalls reports it, and the others report that this rank failed. Tested with
// and without a deadline of the caller.
void stand_still(const World& world, Store& store, bool own_deadline) {
  Rank rank(world, store, own_deadline ? 1 : kDeadline);
  static std::atomic<bool> let;
  if (world.rank == 1) rank.hold([] { return let || folded < 1; });
  const WorkPtr work = rank.sum();
  if (world.rank == 1) {
    const auto began = Clock::now();
    std::thread later([] {
      shoal::test::sleep_seconds(1.5);
      let = true;  // before the wait for the streams' end would time out
    });
    EXPECT_THAT(
        error_text([&] {
          if (own_deadline)
            test_until_done(*work);
          else
            work->wait(Deadline::in_seconds(1));
        }),
        AllOf(HasSubstr("the work of cuda:0 that all_reduce"), HasSubstr(" waits for did")));
    EXPECT_LT(seconds_since(began), 10);
    EXPECT_EQ(folded, kSlices) << "copies ran after their memory was freed";
    later.join();
  } else {
    EXPECT_THAT(error_text([&] {
                  test_until_done(*work);
                  test_until_done(*rank.sum());
                }),
                HasSubstr("rank 1 aborted: the work of cuda:0"));
  }
}
TEST_F(LevelWaits, ForAStalledDeviceUntilTheDeadline) {
  run([](const World& world, Store& store) { stand_still(world, store, true); });
}
TEST_F(LevelWaits, ForAStalledDeviceUntilTheCallersDeadline) {
  run([](const World& world, Store& store) { stand_still(world, store, false); });
}

// Rank 3's rail waits for rank 1, whose device stalls until rank 3 has received a message.
TEST_F(LevelWaits, DriveMessagesMeanwhile) {
  run([](const World& world, Store& store) {
    Rank rank(world, store);
    Buffer word(rank.communicator->memory_resource(), 4, MemoryTag::gradients);
    static std::atomic<bool> let;
    if (world.rank == 1) rank.hold([] { return let.load(); });
    const WorkPtr work = rank.sum();
    const auto soon = [] { return Deadline::in_seconds(20); };
    if (world.rank == 0) {
      (void)store.get("in the pass", soon());
      rank.communicator->send(word.data(), 1, DType::f32, 3)->wait(soon());
    } else if (world.rank == 1) {
      while (!asked) shoal::test::sleep_seconds(0.001);
      store.set("in the pass", "yes");
      (void)store.get("has come", soon());
      let = true;
    } else if (world.rank == 3) {
      rank.communicator->recv(word.data(), 1, DType::f32, 0)->wait(soon());
      store.set("has come", "yes");
    }
    work->wait();
  });
}

// If one rank's device has no memory for the summed slices, all ranks stage everything.
TEST(LevelRoom, OnOneRankDecidesForAllRanks) {
  SHOAL_NEEDS_A_NETWORK();
  if (!shoal_emulated_gpu_hold_copies) GTEST_SKIP() << "needs an emulated GPU";
  ::setenv("SHOAL_EMULATED_GPU_MEMORY", "67108864", 1);
  shoal::test::expect_on_gpu(4, 60, [](const World& world, Store& store) {
    Rank rank(world, store);
    const auto staged = [&] { return rank.communicator->statistics().bounced_bytes; };
    EXPECT_EQ(staged(), kCount * 4 / 2) << "only the rank's share is staged";
    std::vector<Buffer> all;
    std::size_t bytes = device::ShareableMemory::kSegmentBytes;
    while (world.rank == 2 && bytes >= 256) try {
        all.emplace_back(rank.communicator->memory_resource(), bytes, MemoryTag::activations);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::out_of_memory) throw;
        bytes /= 2;
      }
    DeviceBackend& cuda = device_backend(DeviceType::cuda);
    const Stream stream = rank.stream.view();
    std::vector<float> values(kCount, static_cast<float>(1 + world.rank));
    cuda.copy(rank.buffer.data(), values.data(), kCount * 4, stream);
    rank.sum()->wait();
    EXPECT_EQ(staged(), kCount * 4 / 2 + kCount * 4);
    cuda.copy(values.data(), rank.buffer.data(), kCount * 4, stream);
    cuda.synchronize(stream);
    EXPECT_THAT(values, ::testing::Each(4.0f));
    if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "see above");
  });
  ::unsetenv("SHOAL_EMULATED_GPU_MEMORY");
}

}  // namespace
}  // namespace shoal::collectives
