// GPUDirect between hosts on emulated GPUs, over the simulated EFA of support/efa_provider. Its
// card reaches device memory, and host accesses to this memory fault. The card's writes become
// visible only after a flush, and streams run as late as they may.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>

#include "collectives/predictable.h"
#include "gpu/on_gpu.h"
#include "support/calls.h"
#include "support/efa.h"
#include "support/error_text.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives {
namespace {

using shoal::test::expect_on_gpu;
using shoal::test::ProcessRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

void use_cards(const char* fabric = "efa-direct", const char* hmem = "p2p",
               const char* interfaces = "lo") {
  shoal::test::use_efa_provider(interfaces);
  ::setenv("SHOAL_TEST_EFA_FABRIC", fabric, 1);
  ::setenv("SHOAL_TEST_EFA_HMEM", hmem, 1);
}

struct Rank {
  // `hosts`: each rank's host as one letter.
  Rank(World world, Store& store, const std::string& hosts, double deadline = 60)
      : device(shoal::test::device_of(world)), stream(device) {
    world.host = hosts.substr(static_cast<std::size_t>(world.rank), 1);
    CommunicatorOptions options = shoal::test::with_deadline(deadline);
    options.stream = stream.view();
    options.transport = "efa";
    communicator = make_communicator(world, store, options);
  }
  Buffer symmetric(std::int64_t floats) const {
    return {communicator->memory_resource(), static_cast<std::size_t>(floats) * 4,
            MemoryTag::parameters, stream.view()};
  }
  // Queues the copy on the stream and waits for nothing.
  void write(void* to, const std::vector<float>& values) const {
    cuda.copy(to, values.data(), values.size() * 4, stream.view());
  }
  std::vector<float> read(const void* from, std::int64_t count) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    cuda.copy(values.data(), from, values.size() * 4, stream.view());
    cuda.synchronize(stream.view());
    return values;
  }
  Device device;
  OwnedStream stream;
  std::unique_ptr<Communicator> communicator;
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
};

// The notice that log::once() logged under that key; empty: none.
std::string said(const std::string& key) {
  for (const log::Notice& notice : log::notices())
    if (notice.key == key) return notice.text;
  return {};
}

std::vector<float> numbers(int rank, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 100'000.0f * static_cast<float>(rank) + 1);
  return values;
}

// Sums are still staged. All other data is sent directly.
void check_every_operation(const World& world, Store& store, const std::string& hosts) {
  const Rank rank(world, store, hosts);
  EXPECT_THAT(said("device-rdma"), HasSubstr("arrive in device memory (GPUDirect); sums pass"));
  int variant = 0;
  for (const Operation operation : test::kOperations)
    for (const test::Memory memory : {test::Memory::symmetric, test::Memory::mixed}) {
      test::Case c{operation, ++variant % 4 == 0 ? DType::bf16 : DType::f32, ReduceOp::sum};
      c.in_place = operation == Operation::broadcast || variant % 2 == 0;
      if (!test::is_possible(c)) c.in_place = false;
      c.misalignment = 4;
      c.memory = memory;
      c.root = 1;
      c.count = 9'003;
      EXPECT_EQ(test::check(*rank.communicator, c), "");
    }
  EXPECT_GT(rank.communicator->statistics().zero_copy, 4);
}

TEST(GpuDirect, EveryOperationIsExactOnTwoHosts) {
  use_cards();
  expect_on_gpu(
      2, 60, [](const World& world, Store& store) { check_every_operation(world, store, "ab"); });
}

// efa requires no descriptors for host memory, but gets them for device memory.
TEST(GpuDirect, EveryOperationIsExactIfHostMemoryNeedsNoRegistration) {
  use_cards("efa");
  expect_on_gpu(
      2, 60, [](const World& world, Store& store) { check_every_operation(world, store, "ab"); });
}

// Data for all ranks of a host arrives once, and the ranks copy it from each other by CUDA IPC.
TEST(GpuDirect, EveryOperationIsExactForFourRanksOnTwoHosts) {
  use_cards();
  expect_on_gpu(4, 100, [](const World& world, Store& store) {
    check_every_operation(world, store, "abab");
  });
}

// A message leaves after its stream has written it, and is visible to the stream's later work.
TEST(GpuDirect, FollowsTheOrderOfTheStreams) {
  use_cards("efa-direct", "p2p", "lo,lo");  // striped over two cards
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    const Rank rank(world, store, "ab");
    Communicator& c = *rank.communicator;
    constexpr std::int64_t kCount = 100'003;
    const int peer = 1 - world.rank;
    const Buffer mine = rank.symmetric(kCount), theirs = rank.symmetric(kCount),
                 whole = rank.symmetric(2 * kCount);
    for (int turn = 0; turn < 3; ++turn) {
      rank.write(mine.data(), numbers(world.rank + 3 * turn, kCount));
      const WorkPtr in = c.recv(theirs.data(), kCount, DType::f32, peer);
      const WorkPtr out = c.send(mine.data(), kCount, DType::f32, peer);
      const WorkPtr all = c.all_gather(mine.data(), whole.data(), kCount, DType::f32);
      for (const WorkPtr* work : {&in, &out, &all}) (*work)->block_stream(rank.stream.view());
      EXPECT_EQ(rank.read(theirs.data(), kCount), numbers(peer + 3 * turn, kCount));
      const auto gathered = rank.read(whole.data(), 2 * kCount);
      EXPECT_TRUE(std::equal(gathered.begin() + kCount, gathered.end(),
                             numbers(1 + 3 * turn, kCount).begin()));
    }
    EXPECT_EQ(c.statistics().bounced, 0);
    EXPECT_EQ(c.statistics().zero_copy, 9);
  });
}

// If one rank cannot use GPUDirect, none does. All log why, and the results are the same.
struct Without {
  const char* name;
  const char* variable;  // set on rank 1
  const char* value;
  const char* why;
};
class GpuDirectIsNotUsed : public ::testing::TestWithParam<Without> {};
TEST_P(GpuDirectIsNotUsed, IfOneRankCannot) {
  use_cards();
  const Without& without = GetParam();
  expect_on_gpu(2, 60, [&](const World& world, Store& store) {
    if (world.rank == 1) ::setenv(without.variable, without.value, 1);
    const Rank rank(world, store, "ab");
    EXPECT_THAT(said("device-staging"), AllOf(HasSubstr("pinned host memory"),
                                              HasSubstr("on rank 1"), HasSubstr(without.why)));
    constexpr std::int64_t kCount = 20'000;
    const Buffer whole = rank.symmetric(2 * kCount);
    auto* const own = static_cast<float*>(whole.data()) + world.rank * kCount;
    rank.write(own, numbers(world.rank, kCount));
    rank.communicator->all_gather(own, whole.data(), kCount, DType::f32)->wait();
    auto both = numbers(0, kCount), other = numbers(1, kCount);
    both.insert(both.end(), other.begin(), other.end());
    EXPECT_EQ(rank.read(whole.data(), 2 * kCount), both);
    EXPECT_EQ(rank.communicator->statistics().zero_copy, 0);
  });
}
INSTANTIATE_TEST_SUITE_P(
    Each, GpuDirectIsNotUsed,
    ::testing::Values(Without{"Off", "SHOAL_GPUDIRECT", "off", "SHOAL_GPUDIRECT is off"},
                      Without{"NotOffered", "SHOAL_TEST_EFA_HMEM", "", "efa offers no FI_HMEM"},
                      Without{"Copies", "SHOAL_TEST_EFA_HMEM", "copies", "FI_OPT_FI_HMEM_P2P"},
                      Without{"Driver", "SHOAL_EMULATED_GPU_RDMA", "0",
                              "the driver of cuda:0 offers no GPUDirect RDMA"}),
    [](const auto& one) { return one.param.name; });

TEST(GpuDirect, RefusesAnUnknownSetting) {
  use_cards();
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    ::setenv("SHOAL_GPUDIRECT", "yes", 1);
    EXPECT_THAT(shoal::test::error_text([&] { const Rank rank(world, store, "ab"); }),
                HasSubstr("SHOAL_GPUDIRECT='yes' is neither auto nor off"));
  });
}

TEST(GpuDirect, MismatchedCallsAreNamed) {
  use_cards();
  const auto outcomes = shoal::test::on_gpu(2, 60, [](const World& world, Store& store) {
    const Rank rank(world, store, "ab");
    const Buffer whole = rank.symmetric(40'000);
    auto* const x = static_cast<float*>(whole.data());
    if (world.rank == 0)
      rank.communicator->broadcast(x, 20'000, DType::f32, 0)->wait();
    else
      rank.communicator->all_gather(x + 20'000, x, 20'000, DType::f32)->wait();
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.error,
                AllOf(HasSubstr("all_gather of 20000 f32"), HasSubstr("broadcast of 20000 f32")));
}

// The rank is killed between an operation's messages, when half of them have arrived.
TEST(GpuDirect, ARankThatIsKilledIsNamed) {
  use_cards();
  if (!shoal::test::why_no_gpu().empty()) GTEST_SKIP() << "no GPU";
  ProcessRanks ranks(3, [](const World& world, Store& store) {
    const Rank rank(world, store, "abc", 20);
    const Buffer whole = rank.symmetric(3 * 30'000);
    auto* const x = static_cast<float*>(whole.data());
    for (int turn = 0;; ++turn) {
      rank.communicator->all_gather(x + world.rank * 30'000, x, 30'000, DType::f32)->wait();
      if (turn == 1) ProcessRanks::say_ready(store);
    }
  });
  ASSERT_TRUE(ranks.wait_until_ready(40, 3));
  ranks.send_signal(2, SIGKILL);
  const auto outcomes = ranks.wait(40);
  for (const int rank : {0, 1}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(outcome.running);
    EXPECT_EQ(outcome.signal, 0) << "the rank must not crash";
    EXPECT_THAT(outcome.error, HasSubstr("rank 2"));
  }
}

}  // namespace
}  // namespace shoal::collectives
