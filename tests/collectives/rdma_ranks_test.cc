// Communicators of device memory between hosts, with host memory in place of the device: which
// operations go directly between the ranks' buffers.
#include <numeric>

#include "predictable.h"
#include "support/calls.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Each letter is a rank's host.
std::unique_ptr<Communicator> device(World world, Store& store, const std::string& hosts,
                                     std::int64_t copy_bytes = 1 << 20) {
  world.host = hosts.substr(static_cast<std::size_t>(world.rank), 1);
  CommunicatorOptions options = shoal::test::with_deadline(30);
  options.transport = "tcp";
  return std::make_unique<device::DeviceCommunicator>(
      make_communicator(world, store, options),
      device::DeviceCommunicator::Options{.stream = {},
                                          .host = world.host,
                                          .deadline_seconds = 30,
                                          .slice_bytes = 4096,
                                          .copy_bytes = copy_bytes});
}

class RdmaRanks : public ::testing::TestWithParam<std::string> {};

TEST_P(RdmaRanks, EveryOperationIsExact) {
  const std::string hosts = GetParam();
  shoal::test::run_thread_ranks(static_cast<int>(hosts.size()), [&](const World& world,
                                                                    Store& store) {
    const auto c = device(world, store, hosts, 300'000);
    int variant = 0;
    for (const Operation operation : test::kOperations)
      for (const test::Memory memory :
           {test::Memory::symmetric, test::Memory::plain, test::Memory::mixed})
        for (const std::int64_t count : {7, 5003}) {
          test::Case one{operation, ++variant % 3 == 0 ? DType::bf16 : DType::f32, ReduceOp::sum};
          one.count = count;
          one.in_place = operation == Operation::broadcast || variant % 2 == 0;
          if (!test::is_possible(one)) one.in_place = false;
          one.misalignment = 4;
          one.memory = memory;
          one.root = 1;
          EXPECT_EQ(test::check(*c, one), "");
        }
    const auto statistics = c->statistics();
    EXPECT_GT(statistics.zero_copy, 5) << "memory of memory_resource() is sent without a copy";
    EXPECT_GT(statistics.bounced, 5) << "sums and small operations are staged";
  });
}
INSTANTIATE_TEST_SUITE_P(Places, RdmaRanks, ::testing::Values("ab", "abc", "aabb", "abab", "aab"),
                         [](const auto& one) { return one.param; });

// A buffer that is too large to copy into RDMA memory makes all ranks stage theirs.
TEST(RdmaCalls, OneOversizedPlainBufferMakesAllRanksStage) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = device(world, store, "ab", 10'000);
    constexpr std::int64_t kCount = 10'000;
    Buffer symmetric(c->memory_resource(), 2 * kCount * 4, MemoryTag::parameters);
    std::vector<float> plain(2 * kCount);
    float* const whole = world.rank == 1 ? plain.data() : static_cast<float*>(symmetric.data());
    std::fill_n(whole + world.rank * kCount, kCount, static_cast<float>(1 + world.rank));
    c->all_gather(whole + world.rank * kCount, whole, kCount, DType::f32)->wait();
    EXPECT_EQ(whole[kCount - 1], 1.0f);
    EXPECT_EQ(whole[kCount], 2.0f);
    EXPECT_EQ(c->statistics().zero_copy, 0);
    EXPECT_EQ(c->statistics().bounced, 1);
  });
}

// Each end of a message has its own memory, so the ranks need not agree on its kind.
TEST(RdmaCalls, AMessageMayLeaveFromOneKindOfMemoryIntoAnother) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = device(world, store, "ab", 100'000);
    for (const std::int64_t count : {100, 10'000, 50'000}) {
      const Buffer symmetric(c->memory_resource(), static_cast<std::size_t>(count) * 4,
                             MemoryTag::activations);
      std::vector<float> plain(static_cast<std::size_t>(count));
      auto* const registered = static_cast<float*>(symmetric.data());
      for (float* const mine : {registered, plain.data()}) {
        if (world.rank == 0) {
          std::iota(mine, mine + count, 3.0f);
          c->send(mine, count, DType::f32, 1)->wait();
        } else {
          float* const other = mine == registered ? plain.data() : registered;
          c->recv(other, count, DType::f32, 0)->wait();
          EXPECT_EQ(other[count - 1], static_cast<float>(count + 2));
        }
      }
    }
    EXPECT_EQ(c->statistics().zero_copy, 2) << "the long messages, on the side with RDMA memory";
    EXPECT_EQ(c->statistics().bounced, 4);
  });
}

TEST(RdmaCalls, MismatchedCallsAreNamedAsTheUserMadeThem) {
  const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto c = device(world, store, "abc");
    const Buffer buffer(c->memory_resource(), 30'000 * 4, MemoryTag::parameters);
    auto* const x = static_cast<float*>(buffer.data());
    if (world.rank == 0)
      c->broadcast(x, 10'000, DType::f32, 0)->wait();
    else
      c->all_gather(x + world.rank * 10'000, x, 10'000, DType::f32)->wait();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("broadcast of 10000 f32"), HasSubstr("all_gather")));
}

TEST(RdmaCalls, PartsThatDisagreeAreNamed) {
  const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto c = device(world, store, "ab");
    std::vector<float> send(40'000), recv(40'000);
    const std::vector<std::int64_t> equal{10'000, 10'000}, other{10'001, 10'000};
    c->all_to_all_v(send.data(), equal, recv.data(), world.rank == 0 ? equal : other, DType::f32)
        ->wait();
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("all_to_all_v"), HasSubstr("40000"), HasSubstr("40004"))));
}

}  // namespace
}  // namespace shoal::collectives
