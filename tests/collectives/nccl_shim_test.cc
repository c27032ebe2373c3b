// The nccl backend's sources over a shim of NCCL and CUDA (nccl_shim/), with several ranks: the
// sequences of calls, their results and the handling of failures. docs/internals/gpu.md lists what
// only several GPUs can show.
#include <algorithm>
#include <vector>

#include "nccl_shim/shim.h"
#include "predictable.h"
#include "support/error_text.h"
#include "support/hostile_cards.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {
namespace {

namespace shim = shoal::test::nccl_shim;
using shoal::test::error_text;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Numbers = std::vector<std::int64_t>;

CommunicatorOptions on_gpu(int index, double deadline = 30) {
  CommunicatorOptions options;
  options.backend = "nccl";
  options.deadline_seconds = deadline;
  options.stream = {Device::cuda(index), nullptr};
  return options;
}

std::unique_ptr<Communicator> nccl(const World& world, Store& store, double deadline = 30) {
  return make_communicator(world, store, on_gpu(world.rank, deadline));
}

class NcclShim : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { shim::clear(); }
};

TEST_P(NcclShim, EveryOperationIsExact) {
  shoal::test::run_thread_ranks(GetParam(), [](const World& world, Store& store) {
    const auto c = nccl(world, store);
    EXPECT_EQ(c->backend(), "nccl");
    EXPECT_THAT(test::check_everything(*c, {0, 1, 7, 1031}), IsEmpty());
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, NcclShim, ::testing::Values(1, 2, 3, 5));

// NCCL leaves the result of one rank unscaled, and so does the shim.
TEST(NcclOfOneRank, ScalesAPremultipliedSum) {
  shim::clear();
  shoal::test::run_thread_ranks(1, [](const World& world, Store& store) {
    const auto c = nccl(world, store);
    const auto half = Reduction::premultiplied_sum(0.5);
    const std::vector<float> send{8, 16, 24};
    std::vector<float> recv(3, -1);
    c->all_reduce(send.data(), recv.data(), 3, DType::f32, half)->wait();
    EXPECT_THAT(recv, ElementsAre(4, 8, 12));
    c->reduce_scatter(recv.data(), recv.data(), 3, DType::f32, half)->wait();
    EXPECT_THAT(recv, ElementsAre(2, 4, 6));
    c->reduce_scatter_v(send.data(), recv.data(), Numbers{2}, DType::f32, half)->wait();
    EXPECT_THAT(recv, ElementsAre(4, 8, 6));
    c->reduce(recv.data(), recv.data(), 3, DType::f32, half, 0)->wait();
    EXPECT_THAT(recv, ElementsAre(2, 4, 3));
  });
}

// The calls that rank 1 of 3 makes for one operation.
std::vector<std::string> sequence(
    const std::function<WorkPtr(Communicator&, float*, float*)>& body) {
  std::vector<std::string> calls;
  shim::clear();
  shoal::test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto c = nccl(world, store);
    std::vector<float> send(100), recv(100);
    body(*c, send.data(), recv.data())->wait();
    if (world.rank != 1) return;
    calls = shim::calls(1);
    calls.erase(calls.begin());  // drops commInitRank
  });
  return calls;
}

TEST(NcclSequences, OperationsOfNcclAreOneCall) {
  EXPECT_THAT(sequence([](Communicator& c, float* x, float* y) {
                return c.all_reduce(x, y, 16, DType::f32, ReduceOp::max);
              }),
              ElementsAre("allReduce 16 f32 max", "launch 1"));
  EXPECT_THAT(sequence([](Communicator& c, float* x, float*) {
                return c.all_reduce(x, x, 16, DType::f32, Reduction::premultiplied_sum(0.5));
              }),
              ElementsAre("allReduce 16 f32 sum of 0.5 times", "launch 1"));
  EXPECT_THAT(
      sequence([](Communicator& c, float* x, float*) { return c.broadcast(x, 9, DType::f32, 2); }),
      ElementsAre("broadcast 9 f32 root 2", "launch 1"));
}

TEST(NcclSequences, OtherOperationsAreOneLaunchOfSeveralCalls) {
  EXPECT_THAT(sequence([](Communicator& c, float* x, float* y) {
                return c.gather(x, y, 4, DType::f32, 1);
              }),
              ElementsAre("recv 4 f32 from 0", "recv 4 f32 from 2", "launch 2"));
  const Numbers counts{3, 0, 5};
  EXPECT_THAT(sequence([&](Communicator& c, float* x, float* y) {
                return c.reduce_scatter_v(x, y, counts, DType::f32, ReduceOp::sum);
              }),
              ElementsAre("reduce 3 f32 sum root 0", "reduce 5 f32 sum root 2", "launch 2"));
  // Rank a sends a + 2 b elements to rank b.
  EXPECT_THAT(sequence([](Communicator& c, float* x, float* y) {
                const std::int64_t a = c.rank();
                const Numbers sent{a, a + 2, a + 4}, received{2 * a, 2 * a + 1, 2 * a + 2};
                return c.all_to_all_v(x, sent, y, received, DType::f32);
              }),
              ElementsAre("send 5 f32 to 2", "recv 2 f32 from 0", "send 1 f32 to 0",
                          "recv 4 f32 from 2", "launch 4"));
}

TEST(NcclSequences, AGroupIsOneLaunch) {
  EXPECT_THAT(
      sequence([](Communicator& c, float* x, float* y) {
        c.begin_group();
        c.all_reduce(x, x, 8, DType::f32, ReduceOp::sum);
        c.begin_group();
        c.send(x + 50, 2, DType::f32, (c.rank() + 1) % 3);
        c.recv(y, 2, DType::f32, (c.rank() + 2) % 3);
        EXPECT_EQ(c.end_group(), nullptr);
        return c.end_group();
      }),
      ElementsAre("allReduce 8 f32 sum", "send 2 f32 to 2", "recv 2 f32 from 0", "launch 3"));
}

TEST(NcclSequences, ASplitPassesColorsAndTheRanksInTheNewGroups) {
  shim::clear();
  shoal::test::run_thread_ranks(4, [](const World& world, Store& store) {
    const auto c = nccl(world, store);
    const auto part = c->split(world.rank == 3 ? -1 : 7, -world.rank);
    if (!part) {
      EXPECT_EQ(world.rank, 3);
      EXPECT_THAT(shim::calls(3), Contains("commSplit color -1 key -1"));
      return;
    }
    EXPECT_EQ(part->rank(), 2 - world.rank);
    EXPECT_THAT(shim::calls(world.rank),
                Contains("commSplit color 7 key " + std::to_string(part->rank())));
    EXPECT_THAT(test::check_everything(*part, {3}), IsEmpty());
  });
}

TEST(NcclFailures, AnAbortEndsTheWaitsOfAllRanks) {
  shim::clear();
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto c = nccl(world, store);
    std::vector<float> x(16);
    if (world.rank == 2) {
      c->abort("enough");
      c->barrier()->wait();
    }
    c->all_reduce(x.data(), x.data(), 16, DType::f32, ReduceOp::sum)->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 2 aborted: enough")));
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(shim::calls(rank), Contains("commAbort"));
}

TEST(NcclFailures, AMissingRankIsATimeout) {
  shim::clear();
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = nccl(world, store, 0.5);
    std::vector<float> x(16);
    if (world.rank == 0) c->all_reduce(x.data(), x.data(), 16, DType::f32, ReduceOp::sum)->wait();
  });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("all_reduce of 16 f32, sum did not finish"), HasSubstr("rank 0")));
  EXPECT_THAT(shim::calls(0), Contains("commAbort"));
}

TEST(NcclFailures, ALostPeerIsReportedWithNcclsText) {
  shim::clear();
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = nccl(world, store);
    std::vector<float> x(16);
    if (world.rank == 1) return;
    const WorkPtr work = c->all_reduce(x.data(), x.data(), 16, DType::f32, ReduceOp::sum);
    shim::pretend_remote_error(0);
    work->wait();
  });
  EXPECT_THAT(errors[0], HasSubstr("remote process exited"));
}

TEST(NcclFailures, AnOldLibraryIsRefusedBeforeAnythingStarts) {
  shim::clear();
  shim::pretend_version(21708);
  const auto store = make_hash_store();
  EXPECT_THAT(error_text([&] { nccl(shoal::test::local_world(0, 1), *store); }),
              AllOf(HasSubstr("NCCL that was loaded is 2.17.8"), HasSubstr("2.19.0 or later")));
  shim::clear();
}

TEST(NcclFailures, TwoRanksOnOneGpuAreNamed) {
  shim::clear();
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    make_communicator(world, store, on_gpu(world.rank % 2));
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("ranks 0 and 2 are both on GPU-shim-0"), HasSubstr("native"))));
}

// Sharded gradients and values use memory like this: a bucket's memory lives from its first use to
// its sum.
TEST(NcclMemory, SteadyStepsAllocateNoneAndReuseTheirBuffers) {
  shim::clear();
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = nccl(world, store);
    const Stream stream{Device::cuda(world.rank), nullptr};
    std::vector<float> shard(3000);
    std::vector<std::vector<void*>> places;
    for (int step = 0; step < 4; ++step) {
      c->host().barrier()->wait();
      const auto before = shim::memory_calls();
      c->host().barrier()->wait();
      auto& mine = places.emplace_back();
      for (const std::size_t elements : {6000u, 4000u, 6000u}) {
        Buffer bucket(c->memory_resource(), elements * sizeof(float), MemoryTag::gradients, stream);
        mine.push_back(bucket.data());
        const auto count = static_cast<std::int64_t>(elements / 2);
        c->reduce_scatter(bucket.data(), shard.data(), count, DType::f32, ReduceOp::sum, stream)
            ->block_stream(stream);
      }
      c->barrier()->wait();
      c->host().barrier()->wait();
      if (step > 0) {
        EXPECT_EQ(shim::memory_calls(), before) << "step " << step;
      }
      EXPECT_EQ(mine, places.front());
      c->host().barrier()->wait();
    }
  });
  // Each rank has one segment, and memory is unmapped only after a wait for the device.
  const std::vector<std::string> calls = shim::memory_calls();
  EXPECT_EQ(std::ranges::count(calls, "memAlloc 8388608"), 2);
  EXPECT_EQ(std::ranges::count(calls, "memFree"), 2);
  EXPECT_EQ(calls.size(), 6u);
  std::int64_t waits = 0;
  for (const std::string& call : calls) {
    waits += call == "deviceSynchronize" ? 1 : call == "memFree" ? -1 : 0;
    EXPECT_GE(waits, 0);
  }
}

// Values in host memory are exchanged without NCCL, between the same ranks, including those of a
// split group.
TEST(NcclHost, HostValuesAreSummedAndEndWithTheGroup) {
  shim::clear();
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto c = nccl(world, store);
    const auto sum = [&](Communicator& group) {
      std::int64_t value = world.rank + 1;
      group.host().all_reduce(&value, &value, 1, DType::i64, ReduceOp::sum)->wait();
      return value;
    };
    EXPECT_EQ(sum(*c), 6);
    const auto part = c->split(world.rank == 0 ? 1 : 0, world.rank);
    EXPECT_EQ(sum(*part), world.rank == 0 ? 1 : 5);
    if (world.rank == 1) return c->abort("enough");
    sum(*c);
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_THAT(errors[0], HasSubstr("rank 1 aborted: enough"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 aborted: enough"));
}

TEST(AutoBackend, IsNcclIfEachRankHasAGpu) {
  shim::clear();
  const auto backend_of = [](int ranks, int gpus, const std::string& rules = {}) {
    std::string backend;
    shoal::test::run_thread_ranks(ranks, [&](const World& world, Store& store) {
      CommunicatorOptions options = on_gpu(world.rank % gpus);
      options.backend = "auto";
      options.collectives = rules;
      const std::string chosen = choose_backend(world, store, options);
      if (world.rank == 0) backend = chosen;
    });
    return backend;
  };
  EXPECT_EQ(backend_of(2, 2), "nccl");
  EXPECT_EQ(backend_of(3, 2), "native");
  EXPECT_EQ(backend_of(2, 2, "all_reduce:@ring"), "native");
  EXPECT_EQ(backend_of(1, 1), "native");
  shim::pretend_version(21708);
  EXPECT_EQ(backend_of(2, 2), "native");
  shim::clear();
}

// The color and key that a rank publishes for a split.
TEST(NcclCards, ThatAreUnreadableNameTheirRank) {
  shim::clear();
  auto cards = shoal::test::hostile_cards();
  cards.insert(cards.end(), {"1", "1 ", " 1", "1 2 3", "1 2147483648", "9223372036854775808 0"});
  for (const std::string& card : cards) {
    const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
      shoal::test::PlantedStore planted(store, "/places/0/1", card);
      const auto c = nccl(world, world.rank == 0 ? planted : store, 5);
      if (world.rank == 0) (void)c->split(0, 0);
    });
    EXPECT_THAT(errors[0], HasSubstr("nccl: the card of rank 1 is unreadable"))
        << shoal::test::shown(card);
  }
}

}  // namespace
}  // namespace shoal::collectives
