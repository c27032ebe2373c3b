// Operations on device memory by levels: each rank's plan, for all numbers of ranks and hosts, and
// communicators of device memory that use it, with host memory in place of the device. On a GPU:
// tests/gpu/multirank_test.cc.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>

#include "predictable.h"
#include "support/calls.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/collectives/backend/device/level_plan.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Numbers = std::vector<std::int64_t>;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Executes the plans of all ranks on integers. Element i of rank r's send is 1000 r + i + 1.
struct Carried {
  Carried(const Call& call, const hierarchical::Placement& where) {
    const int size = where.size();
    for (int rank = 0; rank < size; ++rank) {
      plans.push_back(device::level_plan(call, rank, where));
      const bool sends = call.operation != Operation::broadcast || rank == call.root;
      sent.emplace_back(at(sends ? call.send_bytes(rank, size) : 0));
      std::iota(sent.back().begin(), sent.back().end(), 1000 * rank + 1);
      received.emplace_back(at(call.recv_bytes(rank, size)));
    }
    for (int rank = 0; rank < size; ++rank)
      for (const device::LevelPlan::Copy& copy : plans[at(rank)].copies) {
        const int source = where.members(where.node_of(rank))[at(copy.source)];
        for (std::int64_t i = 0; i < copy.count; ++i)
          received[at(rank)].at(at(copy.to + i)) = sent[at(source)].at(at(copy.from + i));
      }
    for (int rail = 0; rail < where.rails(); ++rail) carry(where, where.rail(rail));
  }

  // Exchanges the data of a rail's members, which all make the same call.
  void carry(const hierarchical::Placement& where, const std::vector<int>& members) {
    std::vector<Numbers> in, out;
    for (const int rank : members) {
      const device::LevelPlan& plan = plans[at(rank)];
      ASSERT_TRUE(plan.rail);
      Numbers packed;
      for (const device::LevelPlan::Part& part : plan.from)
        for (std::int64_t i = 0; i < part.count; ++i) {
          std::int64_t sum = 0;
          for (const int source : plan.sources)
            sum += sent[at(where.members(where.node_of(rank))[at(source)])].at(at(part.at + i));
          packed.push_back(sum);
        }
      staged.push_back(std::ssize(packed));
      in.push_back(std::move(packed));
    }
    const Call& call = *plans[at(members.front())].rail;
    const int hosts = static_cast<int>(members.size());
    Numbers whole;
    if (call.reduces()) {
      whole.resize(in[0].size());
      for (const Numbers& one : in)
        std::transform(one.begin(), one.end(), whole.begin(), whole.begin(), std::plus<>());
    } else if (call.operation == Operation::broadcast) {
      whole = in[at(call.root)];
    } else {
      for (const Numbers& one : in) whole.insert(whole.end(), one.begin(), one.end());
    }
    for (int host = 0; host < hosts; ++host) {
      const int rank = members[at(host)];
      const device::LevelPlan& plan = plans[at(rank)];
      std::int64_t next = 0;
      if (call.operation == Operation::reduce_scatter) next = host * call.count;
      if (call.operation == Operation::reduce_scatter_v)
        next = std::accumulate(call.counts.begin(), call.counts.begin() + host, std::int64_t{0});
      for (const device::LevelPlan::Part& part : plan.to)
        for (std::int64_t i = 0; i < part.count; ++i, ++next)
          for (const int to : plan.destinations)
            if (part.moves)
              received[at(where.members(where.node_of(rank))[at(to)])].at(at(part.at + i)) =
                  whole.at(at(next));
    }
  }

  std::vector<device::LevelPlan> plans;
  std::vector<Numbers> sent, received;
  Numbers staged;
};

std::int64_t value(int rank, std::int64_t index) { return 1000 * rank + index + 1; }

// The sum over all ranks.
std::int64_t sum(int size, std::int64_t index) {
  std::int64_t all = 0;
  for (int rank = 0; rank < size; ++rank) all += value(rank, index);
  return all;
}

std::vector<std::string> hosts_of(int ranks, int hosts, bool even, std::mt19937& random) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank)
    names.push_back(std::to_string(
        even ? rank % hosts : static_cast<int>(random() % static_cast<unsigned>(hosts))));
  std::ranges::shuffle(names, random);
  return names;
}

TEST(LevelPlans, SumAndBroadcastOverAnyHosts) {
  std::mt19937 random(1);
  for (int size = 2; size <= 17; ++size)
    for (const std::int64_t count : {1, 31, 200}) {
      const hierarchical::Placement where(hosts_of(size, 1 + size / 2, false, random));
      const int root = static_cast<int>(random() % static_cast<unsigned>(size));
      const Carried all(Call{.operation = Operation::all_reduce, .count = count}, where),
          one(Call{.operation = Operation::reduce, .count = count, .root = root}, where),
          cast(Call{.operation = Operation::broadcast, .count = count, .root = root}, where);
      for (int rank = 0; rank < size; ++rank)
        for (std::int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(all.received[at(rank)][at(i)], sum(size, i)) << size << " ranks, " << rank;
          if (rank == root) {
            ASSERT_EQ(one.received[at(rank)][at(i)], sum(size, i));
          } else {
            ASSERT_EQ(cast.received[at(rank)][at(i)], value(root, i));
          }
        }
      // Each host's sum crosses the network once.
      EXPECT_EQ(std::accumulate(all.staged.begin(), all.staged.end(), std::int64_t{0}),
                count * where.nodes());
      EXPECT_EQ(std::accumulate(cast.staged.begin(), cast.staged.end(), std::int64_t{0}), count);
    }
}

TEST(LevelPlans, ScatterAndGatherOverEvenHosts) {
  std::mt19937 random(2);
  for (int size = 2; size <= 17; ++size)
    for (int hosts = 1; hosts <= size; ++hosts) {
      if (size % hosts != 0) continue;
      const hierarchical::Placement where(hosts_of(size, hosts, true, random));
      Call gather{.operation = Operation::all_gather_v};
      for (int rank = 0; rank < size; ++rank) gather.counts.push_back(random() % 5);
      gather.count = std::accumulate(gather.counts.begin(), gather.counts.end(), std::int64_t{0});
      Call scatter = gather;
      scatter.operation = Operation::reduce_scatter_v;
      ASSERT_TRUE(device::has_levels(gather, where) && device::has_levels(scatter, where));
      const Carried gathered(gather, where), scattered(scatter, where),
          equal(Call{.operation = Operation::all_gather, .count = 3}, where),
          shares(Call{.operation = Operation::reduce_scatter, .count = 3}, where);
      std::int64_t begin = 0;
      for (int owner = 0; owner < size; begin += gather.counts[at(owner++)]) {
        for (std::int64_t i = 0; i < gather.counts[at(owner)]; ++i) {
          ASSERT_EQ(scattered.received[at(owner)][at(i)], sum(size, begin + i));
          for (int rank = 0; rank < size; ++rank)
            ASSERT_EQ(gathered.received[at(rank)][at(begin + i)], value(owner, i));
        }
        for (std::int64_t i = 0; i < 3; ++i) {
          ASSERT_EQ(shares.received[at(owner)][at(i)], sum(size, 3 * owner + i));
          for (int rank = 0; rank < size; ++rank)
            ASSERT_EQ(equal.received[at(rank)][at(3 * owner + i)], value(owner, i));
        }
      }
      EXPECT_THAT(shares.staged, Each(3 * hosts));
    }
}

TEST(LevelPlans, AreNotOfferedForOtherCalls) {
  const hierarchical::Placement uneven({"a", "a", "b"});
  EXPECT_TRUE(device::has_levels(Call{.operation = Operation::all_reduce, .count = 5}, uneven));
  EXPECT_FALSE(
      device::has_levels(Call{.operation = Operation::reduce_scatter, .count = 5}, uneven));
  EXPECT_FALSE(device::has_levels(Call{.operation = Operation::all_gather, .count = 5}, uneven));
  EXPECT_FALSE(device::has_levels(Call{.operation = Operation::all_to_all, .count = 5},
                                  hierarchical::Placement({"a", "b"})));
}

// Looking for networks changes the process's environment once. That must not happen while ranks
// that are threads read it.
class Networks final : public ::testing::Environment {
  void SetUp() override { (void)fabric::fabric_providers(); }
};
[[maybe_unused]] const auto* const kNetworks = ::testing::AddGlobalTestEnvironment(new Networks);

// Each letter is a rank's host. Over loopback, ranks of a host share memory and hosts a network.
std::unique_ptr<Communicator> device(World world, Store& store, const std::string& hosts,
                                     std::int64_t copy_bytes = 1 << 20, bool fixed_order = false,
                                     double deadline = 30) {
  world.host = hosts.substr(at(world.rank), 1);
  CommunicatorOptions options = shoal::test::with_deadline(deadline);
  options.fixed_order = fixed_order;
  return std::make_unique<device::DeviceCommunicator>(
      make_communicator(world, store, options),
      device::DeviceCommunicator::Options{.stream = {},
                                          .host = world.host,
                                          .fixed_order = fixed_order,
                                          .deadline_seconds = deadline,
                                          .slice_bytes = 1024,
                                          .copy_bytes = copy_bytes,
                                          .levels_from = 1});
}

// Disables messages from device memory. Gathers and broadcasts would use them here, because host
// memory stands in for the device.
class WithoutWires : public ::testing::Test {
 protected:
  WithoutWires() { ::setenv("SHOAL_GPUDIRECT", "off", 1); }
  ~WithoutWires() override { ::unsetenv("SHOAL_GPUDIRECT"); }
};
class ByLevels : public WithoutWires, public ::testing::WithParamInterface<std::string> {};
using Levels = WithoutWires;

// Every operation in several slices, with a short last one.
TEST_P(ByLevels, EveryOperationIsExact) {
  const std::string hosts = GetParam();
  shoal::test::run_thread_ranks(static_cast<int>(hosts.size()),
                                [&](const World& world, Store& store) {
                                  const auto c = device(world, store, hosts);
                                  EXPECT_THAT(test::check_everything(*c, {0, 1031}), IsEmpty());
                                });
}
INSTANTIATE_TEST_SUITE_P(Places, ByLevels,
                         ::testing::Values("aabb", "abab", "aaabbb", "aabbcc", "aab", "abb"),
                         [](const auto& one) { return one.param; });

// Operations that need a sum go by levels, and the others as direct messages.
TEST(LevelsAndRdma, EveryOperationIsExact) {
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = device(world, store, "aabb");
    EXPECT_THAT(test::check_everything(*c, {1031}), IsEmpty());
  });
}

// With copied buffers, a rank's part is at the start of its receive buffer, and its neighbours
// write the rest. Two operations are in flight; the second one's buffer follows the first one's.
TEST_F(Levels, GathersInPlaceHaveRoomForTheReceivedParts) {
  shoal::test::run_thread_ranks(4, [](const World& world, Store& store) {
    const auto c = device(world, store, "aabb");
    constexpr std::int64_t kCount = 5000;
    std::vector<std::vector<std::int32_t>> all(3, std::vector<std::int32_t>(4 * kCount));
    std::vector<WorkPtr> works;
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::int32_t* const own = all[i].data() + world.rank * kCount;
      std::fill_n(own, kCount, static_cast<std::int32_t>(10 * i) + world.rank);
      works.push_back(c->all_gather(own, all[i].data(), kCount, DType::i32));
    }
    for (const WorkPtr& work : works) work->wait();
    for (std::size_t i = 0; i < all.size(); ++i)
      for (std::int64_t at = 0; at < 4 * kCount; ++at)
        ASSERT_EQ(all[i][static_cast<std::size_t>(at)],
                  static_cast<std::int32_t>(10 * i) + at / kCount)
            << i << " " << at;
  });
}

// A buffer that is not symmetric and too large to copy makes all ranks stage theirs.
TEST_F(Levels, EveryOperationIsExactIfSomeBuffersAreStaged) {
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = device(world, store, "aabb", 0);
    EXPECT_THAT(test::check_everything(*c, {1, 7}), IsEmpty());
  });
}

struct Staged {
  Operation operation;
  DType dtype;
  std::int64_t bytes;  // staged by each of 2 x 2 ranks, with buffers of 4096 elements
  ReduceOp op = ReduceOp::sum;
};

// A rank copies only its share of the host's data into pinned memory.
TEST_F(Levels, OnlyARanksShareIsStaged) {
  constexpr std::int64_t kCount = 4096;
  const std::vector<Staged> cases{
      {Operation::all_reduce, DType::f32, kCount * 4 / 2},
      {Operation::all_reduce, DType::bf16, kCount * 4 / 2},  // sums are f32 between hosts
      {Operation::all_reduce, DType::bf16, kCount * 2 / 2, ReduceOp::max},  // max is not a sum
      {Operation::all_reduce, DType::i8, kCount / 2},
      {Operation::reduce, DType::f32, kCount * 4 / 2},
      {Operation::reduce_scatter, DType::f32, kCount * 4 / 2},
      {Operation::all_gather, DType::f32, kCount / 4 * 4},
  };
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = device(world, store, "aabb");
    for (const Staged& one : cases) {
      test::Case call{one.operation, one.dtype, one.op};
      const bool parts =
          one.operation == Operation::reduce_scatter || one.operation == Operation::all_gather;
      call.count = parts ? kCount / 4 : kCount;
      call.memory = test::Memory::symmetric;
      const CommunicatorStatistics before = c->statistics();
      EXPECT_EQ(test::check(*c, call), "");
      EXPECT_EQ(c->statistics().bounced_bytes - before.bounced_bytes, one.bytes)
          << test::describe(call);
      EXPECT_EQ(c->statistics().bounced - before.bounced, 1) << test::describe(call);
    }
  });
}

float number(int rank, std::int64_t index) {
  const auto mixed =
      static_cast<std::uint32_t>(index * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u) >>
      8;
  return (static_cast<float>(mixed % 65521) - 32760.0f) / 97.0f;  // no sum of three is exact
}

// Ranks of a host are added in rank order, then the hosts, as by the host's own levels. The result
// is the same each time, and 16-bit floats are rounded once.
TEST_F(Levels, SumsHaveTheBitsOfTheHostsResult) {
  constexpr std::int64_t kCount = 5003;
  for (const bool fixed_order : {false, true})
    shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
      const auto c = device(world, store, "aabb", 1 << 20, fixed_order);
      const Buffer memory(c->memory_resource(), kCount * 4, MemoryTag::gradients);
      auto* const floats = static_cast<float*>(memory.data());
      auto* const halves = static_cast<bfloat16*>(memory.data());
      for (int turn = 0; turn < 2; ++turn) {
        for (std::int64_t i = 0; i < kCount; ++i) floats[i] = number(world.rank, i);
        shoal::test::sum(*c, floats, kCount);
        for (std::int64_t i = 0; i < kCount; ++i)
          ASSERT_EQ(floats[i], (number(0, i) + number(1, i)) + (number(2, i) + number(3, i)));
        for (std::int64_t i = 0; i < kCount; ++i) halves[i] = bfloat16(number(world.rank, i));
        c->all_reduce(halves, halves, kCount, DType::bf16, ReduceOp::sum)->wait();
        const auto half = [](int rank, std::int64_t i) {
          return static_cast<float>(bfloat16(number(rank, i)));
        };
        for (std::int64_t i = 0; i < kCount; ++i)
          ASSERT_EQ(
              static_cast<float>(halves[i]),
              static_cast<float>(bfloat16((half(0, i) + half(1, i)) + (half(2, i) + half(3, i)))));
      }
      const std::int64_t share = algorithm::shard(kCount, 2, world.rank % 2, 32).size();
      EXPECT_EQ(c->statistics().bounced_bytes, 4 * share * 4);
    });
}

// More than two values are added from the left. For three, the canonical tree does the same.
TEST_F(Levels, SumsAreInTheOrderOfTheRanks) {
  constexpr std::int64_t kCount = 5003;
  shoal::test::run_thread_ranks(6, [&](const World& world, Store& store) {
    const auto c = device(world, store, "aaabbb");
    const Buffer memory(c->memory_resource(), kCount * 4, MemoryTag::gradients);
    auto* const values = static_cast<float*>(memory.data());
    for (std::int64_t i = 0; i < kCount; ++i) values[i] = number(world.rank, i);
    shoal::test::sum(*c, values, kCount);
    for (std::int64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(values[i], ((number(0, i) + number(1, i)) + number(2, i)) +
                               ((number(3, i) + number(4, i)) + number(5, i)));
    EXPECT_LT(c->statistics().bounced_bytes, kCount * 4 / 2) << "by levels";
  });
}

// For four it does not. The result must be the host's on every route.
TEST_F(Levels, FixedOrderOfFourOnAHostIsTheCanonicalTree) {
  constexpr std::int64_t kCount = 1001;
  shoal::test::run_thread_ranks(8, [&](const World& world, Store& store) {
    const auto c = device(world, store, "aaaabbbb", 1 << 20, true);
    const Buffer memory(c->memory_resource(), kCount * 4, MemoryTag::gradients);
    auto* const values = static_cast<float*>(memory.data());
    for (std::int64_t i = 0; i < kCount; ++i) values[i] = number(world.rank, i);
    shoal::test::sum(*c, values, kCount);
    const auto four = [](int first, std::int64_t i) {
      return (number(first, i) + number(first + 1, i)) +
             (number(first + 2, i) + number(first + 3, i));
    };
    for (std::int64_t i = 0; i < kCount; ++i) ASSERT_EQ(values[i], four(0, i) + four(4, i));
  });
}

// The canonical tree does not match these hosts, so all data passes through pinned memory.
TEST_F(Levels, FixedOrderOverMismatchedHostsIsStaged) {
  constexpr std::int64_t kCount = 3001;
  shoal::test::run_thread_ranks(4, [](const World& world, Store& store) {
    const auto c = device(world, store, "abab", 1 << 20, true);
    const Buffer memory(c->memory_resource(), kCount * 4, MemoryTag::gradients);
    auto* const values = static_cast<float*>(memory.data());
    for (std::int64_t i = 0; i < kCount; ++i) values[i] = number(world.rank, i);
    shoal::test::sum(*c, values, kCount);
    for (std::int64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(values[i], (number(0, i) + number(1, i)) + (number(2, i) + number(3, i)));
    EXPECT_EQ(c->statistics().bounced_bytes, kCount * 4);
  });
}

TEST_F(Levels, UnevenHostsLogWhatIsStaged) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto c = device(world, store, "aab");
    test::Case call{Operation::reduce_scatter, DType::f32, ReduceOp::sum};
    call.count = 1000;
    call.memory = test::Memory::symmetric;
    EXPECT_EQ(test::check(*c, call), "");
    EXPECT_EQ(c->statistics().bounced_bytes, 3 * 1000 * 4);
  });
  const auto notices = log::notices();
  EXPECT_TRUE(std::ranges::any_of(notices, [](const log::Notice& notice) {
    return notice.key == "device-not-levelled" &&
           notice.text.starts_with("reduce_scatter passes wholly") &&
           notice.text.find("the 2 hosts do not have equally many ranks") != std::string::npos;
  }));
}

TEST_F(Levels, MismatchedCallsAreNamedAsTheUserMadeThem) {
  const auto errors = shoal::test::thread_rank_errors(4, [&](const World& world, Store& store) {
    const auto c = device(world, store, "aabb");
    std::vector<float> x(2000);
    c->all_reduce(x.data(), x.data(), world.rank == 3 ? 1999 : 2000, DType::f32, ReduceOp::sum)
        ->wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_reduce of 2000 f32, sum"),
                                 HasSubstr("all_reduce of 1999 f32, sum"))));
}

// Only rank 0 has a short deadline, and only after all ranks have met, because that takes longer on
// a busy machine. The missing rank calls after all others have given up, and gets their error.
TEST_F(Levels, AMissingRankIsNamedOnAllRanks) {
  const auto errors = shoal::test::thread_rank_errors(4, [](const World& world, Store& store) {
    const auto c = device(world, store, "aabb", 1 << 20, false, 100);
    std::vector<float> x(2000);
    c->barrier()->wait();
    for (int peer = 0; world.rank == 3 && peer < 3; ++peer)
      (void)store.get("told " + std::to_string(peer), Deadline::in_seconds(100));
    const std::string text = shoal::test::error_text([&] {
      const WorkPtr work = c->all_reduce(x.data(), x.data(), 2000, DType::f32, ReduceOp::sum);
      world.rank == 0 ? work->wait(Deadline::in_seconds(1)) : work->wait();
    });
    store.set("told " + std::to_string(world.rank), "yes");
    throw Error(ErrorCode::internal, text);
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("all_reduce of 2000 f32, sum (#2) did not finish within"),
                         HasSubstr("missing: rank(s) 3"))));
}

TEST_F(Levels, AnAbortEndsOperationsInFlight) {
  const auto errors = shoal::test::thread_rank_errors(4, [](const World& world, Store& store) {
    const auto c = device(world, store, "aabb");
    std::vector<float> x(200'000);
    if (world.rank == 2) {
      shoal::test::sleep_seconds(0.1);
      c->abort("enough");
    }
    for (;;) c->all_reduce(x.data(), x.data(), 200'000, DType::f32, ReduceOp::sum)->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 2 aborted: enough")));
}

}  // namespace
}  // namespace shoal::collectives
