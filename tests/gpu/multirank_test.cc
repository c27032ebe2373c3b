// Ranks that are processes sharing one GPU (or several), and ranks that are threads of one process.
// Every operation of communicators of device memory is compared with exactly predictable results.
#include <csignal>
#include <cstring>
#include <vector>

#include "collectives/predictable.h"
#include "gpu/on_gpu.h"
#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {
namespace {

using shoal::test::expect_on_gpu;
using ::testing::IsEmpty;

// A rank's communicator on device 0, and the stream for calls without one.
struct Rank {
  // `hosts`: each rank's host as one letter; empty: all ranks share one host.
  Rank(World world, Store& store, const std::string& hosts = {})
      : stream(shoal::test::device_of(world)) {
    if (!hosts.empty()) world.host = hosts.substr(static_cast<std::size_t>(world.rank), 1);
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

TEST(GpuRanks, EveryOperationIsExactForTwoProcesses) {
  expect_on_gpu(2, 120, [](const World& world, Store& store) {
    check_every_operation(world, store, {0, 1031});
  });
}

TEST(GpuRanks, EveryOperationIsExactForFourProcesses) {
  expect_on_gpu(4, 120, [](const World& world, Store& store) {
    check_every_operation(world, store, {1031});
  });
}

TEST(GpuRanks, EveryOperationIsExactForThreeThreads) {
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
    const std::int64_t asked = device_backend(DeviceType::cuda).statistics().allocations;
    const Buffer large(rank.communicator->memory_resource(), 64 << 20, MemoryTag::gradients);
    EXPECT_EQ(device_backend(DeviceType::cuda).statistics().allocations, asked + 1);
    rank.communicator->barrier()->wait();
  });
}

// Several MiB, an odd number of elements, unaligned; in slices if staged.
TEST(GpuRanks, LargeBuffersAreExactForThreeProcesses) {
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

// Ranks of one host sum from and write into each other's memory. Between hosts each rank's share is
// staged.
void check_levels(const World& world, Store& store, const std::string& hosts, std::int64_t count) {
  const Rank rank(world, store, hosts);
  int variant = 0;
  for (const Operation operation : {Operation::all_reduce, Operation::reduce_scatter,
                                    Operation::all_gather, Operation::broadcast, Operation::reduce,
                                    Operation::reduce_scatter_v, Operation::all_gather_v})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      test::Case c{operation, dtype, variant % 3 == 1 ? ReduceOp::avg : ReduceOp::sum};
      c.in_place = operation == Operation::broadcast || ++variant % 2 == 0;
      if (!test::is_possible(c)) c.in_place = false;
      c.misalignment = 4;
      c.memory = variant % 4 == 3 ? test::Memory::mixed : test::Memory::symmetric;
      c.root = 1;
      c.count = count;
      const CommunicatorStatistics before = rank.communicator->statistics();
      EXPECT_EQ(test::check(*rank.communicator, c), "");
      if (hosts != "aabb" || operation != Operation::all_reduce || dtype != DType::f32 ||
          c.memory != test::Memory::symmetric)
        continue;
      EXPECT_NEAR(
          static_cast<double>(rank.communicator->statistics().bounced_bytes - before.bounced_bytes),
          static_cast<double>(count) * 4 / 2, 128)
          << "only half of the buffer is staged";
    }
}

TEST(GpuRanks, LevelsOfTwoHostsWithTwoRanksAreExact) {
  SHOAL_NEEDS_A_NETWORK();
  expect_on_gpu(4, 120, [](const World& world, Store& store) {
    check_levels(world, store, "aabb", 300'003);
  });
}

TEST(GpuRanks, LevelsOfUnevenHostsAreExact) {
  SHOAL_NEEDS_A_NETWORK();
  expect_on_gpu(
      3, 120, [](const World& world, Store& store) { check_levels(world, store, "aab", 300'003); });
}

// Through pinned memory in many slices, with two in flight.
TEST(GpuRanks, StagedSlicesOfTwoHostsAreExact) {
  SHOAL_NEEDS_A_NETWORK();
  expect_on_gpu(2, 60, [](World world, Store& store) {
    const OwnedStream stream(shoal::test::device_of(world));
    world.host = world.rank == 0 ? "a" : "b";
    const auto source = make_pinned_memory();
    CountingMemory pinned(*source);
    {
      device::DeviceCommunicator communicator(
          make_communicator(world, store, shoal::test::with_deadline(60)), {.stream = stream.view(),
                                                                            .host = world.host,
                                                                            .deadline_seconds = 60,
                                                                            .pinned = &pinned,
                                                                            .slice_bytes = 4096});
      EXPECT_THAT(test::check_everything(communicator, {5003}), IsEmpty());
      EXPECT_EQ(communicator.statistics().zero_copy, 0);
      // Two slices, each with a send and a receive buffer, so the pools stay small.
      EXPECT_GE(pinned.usage(MemoryTag::communication).current, 4 * 4096);
      EXPECT_EQ(pinned.total().current, pinned.usage(MemoryTag::communication).current);
    }
    EXPECT_EQ(pinned.total().current, 0);
  });
}

// Each rank in turn is killed during sums. Its neighbour, the other rank of its rail and the other
// host's second rank must report it.
class GpuRankKilled : public ::testing::TestWithParam<int> {};
TEST_P(GpuRankKilled, DuringLevelsIsNamedOnAllRanks) {
  SHOAL_NEEDS_A_NETWORK();
  if (!shoal::test::why_no_gpu().empty()) GTEST_SKIP() << "no GPU";
  const int killed = GetParam();
  shoal::test::ProcessRanks ranks(4, [](const World& world, Store& store) {
    const Rank rank(world, store, "aabb");
    constexpr std::int64_t kCount = 1'000'000;
    const Buffer buffer(rank.communicator->memory_resource(), kCount * 4, MemoryTag::gradients);
    for (int turn = 0;; ++turn) {
      rank.communicator->all_reduce(buffer.data(), buffer.data(), kCount, DType::f32, ReduceOp::max)
          ->wait();
      if (turn == 1) shoal::test::ProcessRanks::say_ready(store);
    }
  });
  ASSERT_TRUE(ranks.wait_until_ready(60, 4));
  ranks.send_signal(killed, SIGKILL);
  const auto outcomes = ranks.wait(60);
  for (int rank = 0; rank < 4; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(outcome.running) << "rank " << rank << " did not end";
    if (rank == killed) continue;
    EXPECT_EQ(outcome.signal, 0) << "rank " << rank << " must not crash";
    EXPECT_THAT(outcome.error, ::testing::HasSubstr("rank " + std::to_string(killed)));
  }
}
INSTANTIATE_TEST_SUITE_P(Each, GpuRankKilled, ::testing::Values(0, 1, 2, 3));

float number(int rank, std::int64_t index) {
  const auto mixed =
      static_cast<std::uint32_t>(index * 2654435761 + rank * std::int64_t{40503}) >> 8;
  return (static_cast<float>(mixed % 65521) - 32760.0f) / 97.0f;  // no sum of three is exact
}

// The device adds a host's ranks from the left. For four ranks the canonical tree differs.
TEST(GpuRanks, FixedOrderByLevelsIsTheCanonicalTree) {
  SHOAL_NEEDS_A_NETWORK();
  expect_on_gpu(5, 60, [](World world, Store& store) {
    constexpr std::int64_t kCount = 70'001;  // large enough to go by levels
    const OwnedStream stream(shoal::test::device_of(world));
    world.host = world.rank < 4 ? "a" : "b";
    CommunicatorOptions options = shoal::test::with_deadline(60);
    options.stream = stream.view();
    options.fixed_order = true;
    const auto c = make_communicator(world, store, options);
    std::vector<float> own(kCount), want(kCount), have(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      const auto at = static_cast<std::size_t>(i);
      own[at] = number(world.rank, i);
      want[at] = ((number(0, i) + number(1, i)) + (number(2, i) + number(3, i))) + number(4, i);
    }
    const Buffer buffer(c->memory_resource(), kCount * 4, MemoryTag::gradients);
    DeviceBackend& cuda = device_backend(DeviceType::cuda);
    cuda.copy(buffer.data(), own.data(), kCount * 4, stream.view());
    c->all_reduce(buffer.data(), buffer.data(), kCount, DType::f32, ReduceOp::sum)->wait();
    cuda.copy(have.data(), buffer.data(), kCount * 4, stream.view());
    cuda.synchronize(stream.view());
    EXPECT_EQ(std::memcmp(have.data(), want.data(), kCount * 4), 0);
  });
}

// A sum in rank order must be the same on every rank, every time.
TEST(GpuRanks, SumsHaveTheBitsOfAFoldInRankOrder) {
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
      // Only the stream orders the sum after the copy.
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

TEST(GpuRanks, SplitGroupsAndHostValuesWork) {
  expect_on_gpu(4, 60, [](const World& world, Store& store) {
    const Rank rank(world, store);
    const auto part = rank.communicator->split(world.rank % 2, world.rank);
    EXPECT_THAT(test::check_everything(*part, {5}), IsEmpty());
    double loss = world.rank;
    rank.communicator->host().all_reduce(&loss, &loss, 1, DType::f64, ReduceOp::sum)->wait();
    EXPECT_EQ(loss, 6.0);
  });
}

TEST(GpuRanks, ALostRankIsNamed) {
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
