// What a rank does while its device, or its rail, has a slice of an operation by levels: it has
// patience as long as something goes on, says so where nothing does, and brings messages on. The
// emulated GPU's copies are held back.
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

// Of cudaMemcpyKind; only where the GPU is emulated (support/emulated_gpu/copies.cc).
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

// Of this process: copies to the host that have been carried out, and whether one more may be.
std::atomic<int> folded = 0;
std::function<bool()> may_fold;
std::atomic<bool> asked = false;

// Ranks 0 and 1 on one host, 2 and 3 on the other.
struct Rank {
  // `deadline`: of the device's communicator alone.
  Rank(World world, Store& store, double deadline = kDeadline)
      : stream(shoal::test::device_of(world)) {
    world.host = world.rank < 2 ? "a" : "b";
    auto host = make_communicator(world, store, shoal::test::with_deadline(kDeadline));
    host->barrier()->wait();  // they may come late, and that has nothing to do with it
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
  // From now on.
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

// Without a deadline of the caller's.
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

// All slices together take longer than the deadline.
TEST_F(LevelWaits, AsLongAsTheDeviceGoesOn) {
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

// The one whose device stands still says so, and the others that it has failed: where the caller
// has no deadline, and where he does.
void stand_still(const World& world, Store& store, bool own_deadline) {
  Rank rank(world, store, own_deadline ? 1 : kDeadline);
  static std::atomic<bool> let;
  if (world.rank == 1) rank.hold([] { return let || folded < 1; });
  const WorkPtr work = rank.sum();
  if (world.rank == 1) {
    const auto began = Clock::now();
    std::thread later([] {
      shoal::test::sleep_seconds(1.5);
      let = true;  // before the streams' end is waited for in vain
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
    EXPECT_EQ(folded, kSlices) << "copies into memory that is gone";
    later.join();
  } else {
    EXPECT_THAT(error_text([&] {
                  test_until_done(*work);
                  test_until_done(*rank.sum());
                }),
                HasSubstr("rank 1 aborted: the work of cuda:0"));
  }
}
TEST_F(LevelWaits, ForADeviceThatStandsStillUntilTheDeadline) {
  run([](const World& world, Store& store) { stand_still(world, store, true); });
}
TEST_F(LevelWaits, ForADeviceThatStandsStillUntilTheCallersDeadline) {
  run([](const World& world, Store& store) { stand_still(world, store, false); });
}

// Rank 3's rail waits for rank 1, whose device stands still until rank 3 has a message.
TEST_F(LevelWaits, AndBringsMessagesOn) {
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

// One whose device has no room for the slices that are folded decides for all: everything is
// staged.
TEST(LevelRoom, OfOneRankDecidesForAll) {
  SHOAL_NEEDS_A_NETWORK();
  if (!shoal_emulated_gpu_hold_copies) GTEST_SKIP() << "needs an emulated GPU";
  ::setenv("SHOAL_EMULATED_GPU_MEMORY", "67108864", 1);
  shoal::test::expect_on_gpu(4, 60, [](const World& world, Store& store) {
    Rank rank(world, store);
    const auto staged = [&] { return rank.communicator->statistics().bounced_bytes; };
    EXPECT_EQ(staged(), kCount * 4 / 2) << "a rank's share";
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
