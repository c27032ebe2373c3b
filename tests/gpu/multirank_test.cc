// Ranks that are processes sharing one GPU (or several), and threads of one: every operation of
// Communicators of device memory against exactly predictable results.
#include <cstring>
#include <vector>

#include "collectives/predictable.h"
#include "gpu/on_gpu.h"
#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {
namespace {

using shoal::test::expect_on_gpu;
using ::testing::IsEmpty;

// A rank's Communicator on device 0, and the stream of calls that pass none.
struct Rank {
  Rank(const World& world, Store& store) : stream(shoal::test::device_of(world)) {
    CommunicatorOptions options = shoal::test::with_deadline(60);
    options.stream = stream.view();
    communicator = make_communicator(world, store, options);
  }
  OwnedStream stream;
  std::unique_ptr<Communicator> communicator;
};

void check_every_operation(const World& world, Store& store,
                           const std::vector<std::int64_t>& counts) {
  const Rank rank(world, store);
  EXPECT_THAT(test::check_everything(*rank.communicator, counts), IsEmpty());
  const auto statistics = rank.communicator->statistics();
  EXPECT_GT(statistics.zero_copy, 0);
  EXPECT_GT(statistics.bounced, 0);
}

TEST(GpuRanks, EveryOperationOfTwoProcesses) {
  expect_on_gpu(2, 120, [](const World& world, Store& store) {
    check_every_operation(world, store, {0, 1031});
  });
}

TEST(GpuRanks, EveryOperationOfFourProcesses) {
  expect_on_gpu(4, 120, [](const World& world, Store& store) {
    check_every_operation(world, store, {1031});
  });
}

TEST(GpuRanks, EveryOperationOfThreeThreads) {
  expect_on_gpu(1, 120, [](const World&, Store&) {
    shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
      check_every_operation(world, store, {1, 7});
      const Rank rank(world, store);
      EXPECT_EQ(rank.communicator->statistics().transport, "memory of one process");
    });
  });
}

TEST(GpuRanks, ProcessesReachEachOthersMemory) {
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    const Rank rank(world, store);
    EXPECT_EQ(rank.communicator->statistics().transport, "CUDA IPC");
    EXPECT_EQ(rank.communicator->memory_resource().device(), shoal::test::device_of(world));
  });
}

// Several MiB, an odd number of elements, unaligned; in slices where staged.
TEST(GpuRanks, LargeBuffersOfThreeProcesses) {
  expect_on_gpu(3, 120, [](const World& world, Store& store) {
    const Rank rank(world, store);
    int variant = 0;
    for (const Operation operation : test::kOperations)
      for (const test::Memory memory : {test::Memory::symmetric, test::Memory::plain}) {
        test::Case c{operation, ++variant % 4 == 0 ? DType::bf16 : DType::f32, ReduceOp::sum};
        c.in_place = operation == Operation::broadcast || variant % 2 == 0;
        if (!test::is_possible(c)) c.in_place = false;
        c.misalignment = 4;
        c.memory = memory;
        c.root = 2;
        c.count = 500'003;
        EXPECT_EQ(test::check(*rank.communicator, c), "");
      }
  });
}

float number(int rank, std::int64_t index) {
  const auto mixed = static_cast<std::uint32_t>(index * 2654435761u + rank * 40503u) >> 8;
  return (static_cast<float>(mixed % 65521) - 32760.0f) * 0x1.3p-9f;
}

// A sum in rank order, the same on every rank and every time.
TEST(GpuRanks, SumsAreTheFoldInRankOrderToTheBit) {
  expect_on_gpu(3, 60, [](const World& world, Store& store) {
    constexpr std::int64_t kCount = 1'000'003;
    constexpr std::size_t kBytes = kCount * 4;
    const Rank rank(world, store);
    const Stream stream = rank.stream.view();
    DeviceBackend& cuda = device_backend(DeviceType::cuda);
    std::vector<float> own(kCount), want(kCount), have(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto at = static_cast<std::size_t>(i);
      own[at] = number(world.rank, i);
      want[at] = number(0, i) + number(1, i) + number(2, i);
    }
    const Buffer buffer(rank.communicator->memory_resource(), kBytes, MemoryTag::gradients, stream);
    for (int turn = 0; turn < 3; ++turn) {
      cuda.copy(buffer.data(), own.data(), kBytes, stream);
      // Ordered after the copy by the stream alone.
      const WorkPtr work = rank.communicator->all_reduce(buffer.data(), buffer.data(), kCount,
                                                         DType::f32, ReduceOp::sum);
      work->block_stream(stream);
      cuda.copy(have.data(), buffer.data(), kBytes, stream);
      cuda.synchronize(stream);
      EXPECT_EQ(std::memcmp(have.data(), want.data(), kBytes), 0) << "turn " << turn;
    }
    EXPECT_EQ(rank.communicator->statistics().zero_copy, 3);
  });
}

TEST(GpuRanks, ASplitGroupAndHostValues) {
  expect_on_gpu(4, 60, [](const World& world, Store& store) {
    const Rank rank(world, store);
    const auto part = rank.communicator->split(world.rank % 2, world.rank);
    EXPECT_THAT(test::check_everything(*part, {5}), IsEmpty());
    double loss = world.rank;
    rank.communicator->host().all_reduce(&loss, &loss, 1, DType::f64, ReduceOp::sum)->wait();
    EXPECT_EQ(loss, 6.0);
  });
}

TEST(GpuRanks, ARankThatIsLostIsNamed) {
  const auto outcomes = shoal::test::on_gpu(2, 60, [](const World& world, Store& store) {
    const Rank rank(world, store);
    if (world.rank == 1) _exit(3);
    const Buffer buffer(rank.communicator->memory_resource(), 4000, MemoryTag::gradients);
    rank.communicator->all_reduce(buffer.data(), buffer.data(), 1000, DType::f32, ReduceOp::sum)
        ->wait();
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(outcomes[0].exit_status, 1);
  EXPECT_THAT(outcomes[0].error, ::testing::HasSubstr("rank 1"));
}

}  // namespace
}  // namespace shoal::collectives
