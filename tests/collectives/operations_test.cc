// Cases that the matrix does not cover: groups, sub-groups, unequal counts that disagree, and
// refused arguments. With the native backend; mpirun_test.cc repeats some with mpi.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Numbers = std::vector<std::int64_t>;

CommunicatorOptions options(double deadline = 30) {
  CommunicatorOptions o;
  o.deadline_seconds = deadline;
  return o;
}

TEST(Options, ThatOnlyNativeKnowsAreRefusedByTheOthers) {
  const auto store = make_hash_store();
  for (const std::string backend : {"mpi", "nccl"}) {
    const auto text_with = [&](std::string CommunicatorOptions::* option, const char* value) {
      CommunicatorOptions o;
      o.backend = backend;
      o.*option = value;
      return error_text([&] { make_communicator(shoal::test::local_world(0, 2), *store, o); });
    };
    EXPECT_THAT(text_with(&CommunicatorOptions::transport, "tcp"),
                HasSubstr("transport 'tcp' is native's; the " + backend + " backend"));
    EXPECT_THAT(text_with(&CommunicatorOptions::collectives, "@ring"),
                HasSubstr("collectives '@ring' is native's; the " + backend + " backend"));
    EXPECT_THAT(text_with(&CommunicatorOptions::algorithm, "ring"),
                HasSubstr("algorithm 'ring' is native's; the " + backend + " backend"));
  }
}

bool noticed(const std::string& text) {
  const auto notices = log::notices();
  return std::ranges::any_of(notices, [&](const log::Notice& notice) {
    return notice.text.find(text) != std::string::npos;
  });
}

TEST(Options, OfTheEnvironmentThatHaveNoEffectAreLogged) {
  const auto store = make_hash_store();
  CommunicatorOptions o;
  o.backend = "mpi";
  ASSERT_FALSE(noticed("SHOAL_COLLECTIVES has no effect"));
  ::setenv("SHOAL_COLLECTIVES", "@ring", 1);
  make_communicator(shoal::test::local_world(0, 1), *store, o);
  ::unsetenv("SHOAL_COLLECTIVES");
  EXPECT_TRUE(noticed("SHOAL_COLLECTIVES has no effect"));
}

TEST(SingleRank, RefusesUnknownOptionsAndLogsIneffectiveOnes) {
  const auto store = make_hash_store();
  const auto text_with = [&](const CommunicatorOptions& o) {
    return error_text([&] { make_communicator(shoal::test::local_world(0, 1), *store, o); });
  };
  CommunicatorOptions o;
  o.transport = "carrier pigeons";
  EXPECT_THAT(text_with(o), HasSubstr("'carrier pigeons' is not a transport; there are shm, tcp"));
  o.transport = "tcp";
  o.collectives = "@ringg";
  EXPECT_THAT(text_with(o), HasSubstr("ringg"));
  o.collectives = "@ring";
  EXPECT_EQ(text_with(o), "nothing was thrown");
  EXPECT_TRUE(noticed("the rules of collectives, transport tcp: without effect, for one rank's"));
  CommunicatorOptions mpi;
  mpi.backend = "mpi";
  EXPECT_EQ(text_with(mpi), "nothing was thrown");
  EXPECT_TRUE(noticed("backend mpi: without effect, for one rank's"));
}

TEST(SingleRank, AbortsLikeSeveralRanks) {
  const auto store = make_hash_store();
  const auto c = make_communicator(shoal::test::local_world(0, 1), *store, options());
  c->barrier()->wait();
  const auto part = c->split(0, 0);
  c->abort("enough");
  c->abort("more than that");
  for (int call = 0; call < 2; ++call)
    EXPECT_THAT(error_text([&] { c->barrier(); }), HasSubstr("rank 0 aborted: enough [rank 0"));
  EXPECT_THAT(error_text([&] { c->split(0, 0); }), HasSubstr("rank 0 aborted: enough"));
  part->barrier()->wait();
}

TEST(UnequalCounts, ThatDifferAreNamedOnEveryRank) {
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    Numbers counts{4, 0, 6};
    if (world.rank == 1) counts = {4, 1, 5};  // the same sum
    std::vector<float> send(10), recv(10);
    communicator->all_gather_v(send.data(), recv.data(), counts, DType::f32)->wait();
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("ranks called different operations"),
                               HasSubstr("rank 0 gives rank 1 a count of 0, rank 1 gives it 1")));
  EXPECT_THAT(errors[1], HasSubstr("rank 1 gives rank 1 a count of 1, rank 0 gives it 0"));
  EXPECT_THAT(errors[2], HasSubstr("rank 2 gives rank 1 a count of 0, rank 1 gives it 1"));
}

TEST(UnequalCounts, SentAndExpectedCountsMustAgree) {
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    Numbers sent{4, 4, 4}, expected{4, 4, 4};
    if (world.rank == 1) sent[0] = 5;
    std::vector<float> send(13), recv(12);
    communicator->all_to_all_v(send.data(), sent, recv.data(), expected, DType::f32)->wait();
  });
  // Rank 2, which exchanges nothing with the other two, fails as well before data moves.
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 sends 5 elements to rank 0, which expects 4")));
}

TEST(UnequalCounts, OneLargePartAmongSmallOnesIsNotInlined) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    // Only rank 2 sends much. Its peers must not expect its data inline.
    const auto count = [](int from, int to) { return from == 2 && to == 0 ? 50000 : 1; };
    Numbers sent, expected;
    for (int peer = 0; peer < 3; ++peer) {
      sent.push_back(count(world.rank, peer));
      expected.push_back(count(peer, world.rank));
    }
    std::vector<std::int32_t> send(
        static_cast<std::size_t>(std::accumulate(sent.begin(), sent.end(), std::int64_t{0})),
        world.rank);
    std::vector<std::int32_t> recv(static_cast<std::size_t>(
        std::accumulate(expected.begin(), expected.end(), std::int64_t{0})));
    communicator->all_to_all_v(send.data(), sent, recv.data(), expected, DType::i32)->wait();
    EXPECT_EQ(recv[0], 0);
    EXPECT_EQ(recv[1], 1);
    EXPECT_EQ(recv[2], 2);
    EXPECT_EQ(recv.back(), 2);
  });
}

TEST(Groups, EndWhenACallInThemIsRefused) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options(5));
    std::vector<float> values(10, 1.0f);
    c->begin_group();
    c->begin_group();
    c->all_reduce(values.data(), values.data(), 5, DType::f32, ReduceOp::sum);
    EXPECT_THAT(error_text([&] { c->broadcast(values.data(), 10, DType::f32, 2); }),
                HasSubstr("root"));
    // This call is not queued for an end_group() that never comes, and the group's earlier calls
    // are dropped.
    c->all_reduce(values.data() + 5, values.data() + 5, 5, DType::f32, ReduceOp::sum)->wait();
    EXPECT_EQ(values[4], 1.0f);
    EXPECT_EQ(values[5], 2.0f);
  });
}

TEST(Arguments, OfTheNewOperationsAreChecked) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options());
    std::vector<float> x(100), y(100);
    const Numbers three{1, 1, 1}, negative{1, -1}, two{2, 2};
    EXPECT_THAT(error_text([&] { c->all_gather_v(x.data(), y.data(), three, DType::f32); }),
                HasSubstr("all_gather_v: 3 counts for a group of 2"));
    EXPECT_THAT(error_text([&] {
                  c->reduce_scatter_v(x.data(), y.data(), negative, DType::f32, ReduceOp::sum);
                }),
                HasSubstr("reduce_scatter_v: count -1 of rank 1"));
    EXPECT_THAT(error_text([&] { c->all_to_all_v(x.data(), two, y.data(), three, DType::f32); }),
                HasSubstr("all_to_all_v: 3 receive counts"));
    EXPECT_THAT(error_text([&] { c->all_to_all(x.data(), x.data(), 4, DType::f32); }),
                HasSubstr("overlap"));
    EXPECT_THAT(error_text([&] { c->gather(x.data(), y.data(), 1, DType::f32, 2); }),
                HasSubstr("gather: root 2 in a group of 2"));
    EXPECT_THAT(error_text([&] { c->reduce(nullptr, y.data(), 1, DType::f32, ReduceOp::sum, 0); }),
                HasSubstr("null pointer"));
    EXPECT_THAT(error_text([&] {
                  c->all_reduce(x.data(), y.data(), 1, DType::i32, Reduction::premultiplied_sum(2));
                }),
                HasSubstr("premultiplied_sum of i32"));
    EXPECT_THAT(error_text([&] { c->send(x.data(), 1, DType::f32, world.rank); }),
                HasSubstr("to itself"));
    EXPECT_THAT(error_text([&] { c->recv(x.data(), 1, DType::f32, 5); }), HasSubstr("rank 5"));
    EXPECT_THAT(error_text([&] { c->end_group(); }), HasSubstr("without begin_group"));
    c->barrier()->wait();  // none of the refused calls counted
  });
}

// 3 * 21845 is 65535, beyond f16's 65504. Only the mean fits.
TEST(Averages, OfSixteenBitFloatsDoNotOverflowMidway) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    for (const std::int64_t count : {5, 9000}) {
      std::vector<float16> x(static_cast<std::size_t>(count), float16(30000.0f));
      communicator->all_reduce(x.data(), x.data(), count, DType::f16, ReduceOp::avg)->wait();
      EXPECT_EQ(static_cast<float>(x[4]), static_cast<float>(float16(30000.0f)));
    }
  });
}

TEST(Groups, NothingMovesBeforeTheEndAndOneWorkCoversAllCalls) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    std::vector<float> a(10, 1.0f), b(20000, 2.0f), gathered(6);
    communicator->begin_group();
    EXPECT_EQ(communicator->all_reduce(a.data(), a.data(), 10, DType::f32, ReduceOp::sum), nullptr);
    communicator->begin_group();
    EXPECT_EQ(communicator->all_reduce(b.data(), b.data(), 20000, DType::f32, ReduceOp::max),
              nullptr);
    EXPECT_EQ(communicator->end_group(), nullptr);
    EXPECT_EQ(communicator->all_gather(b.data(), gathered.data(), 2, DType::f32), nullptr);
    EXPECT_EQ(a[0], 1.0f);
    EXPECT_EQ(communicator->statistics().operations, 0);
    const WorkPtr work = communicator->end_group();
    work->wait();
    EXPECT_TRUE(work->test());
    EXPECT_EQ(a[9], 3.0f);
    EXPECT_EQ(b[19999], 2.0f);
    EXPECT_EQ(gathered[5], 2.0f);
    communicator->begin_group();
    communicator->end_group()->wait();  // empty
  });
}

TEST(Groups, SmallAllReducesOfOneKindBecomeOne) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    for (const std::int64_t count : {1, 700}) {  // inline, and zero-copy
      const auto before = communicator->statistics().operations;
      std::vector<std::vector<float>> sums, largest;
      communicator->begin_group();
      for (int i = 0; i < 20; ++i) {
        sums.emplace_back(static_cast<std::size_t>(count), static_cast<float>(i + world.rank));
        largest.emplace_back(static_cast<std::size_t>(count), static_cast<float>(i + world.rank));
        communicator->all_reduce(sums.back().data(), sums.back().data(), count, DType::f32,
                                 ReduceOp::sum);
        communicator->all_reduce(largest.back().data(), largest.back().data(), count, DType::f32,
                                 ReduceOp::max);
      }
      communicator->end_group()->wait();
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(sums[static_cast<std::size_t>(i)].back(), static_cast<float>(3 * i + 3));
        EXPECT_EQ(largest[static_cast<std::size_t>(i)].back(), static_cast<float>(i + 2));
      }
      EXPECT_EQ(communicator->statistics().operations - before, 2);
    }
  });
}

// Each factor belongs to one call and one rank, so such sums are not fused.
TEST(Groups, PremultipliedSumsKeepTheirFactors) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    std::vector<float> sums(6, 1.0f);
    communicator->begin_group();
    for (std::size_t i = 0; i < sums.size(); ++i)
      communicator->all_reduce(
          &sums[i], &sums[i], 1, DType::f32,
          Reduction::premultiplied_sum(static_cast<double>(i + 1) * (world.rank == 0 ? 1 : 10)));
    communicator->end_group()->wait();
    for (std::size_t i = 0; i < sums.size(); ++i)
      EXPECT_EQ(sums[i], 11.0f * static_cast<float>(i + 1));
  });
}

TEST(Groups, DifferentPartsOfTheSameFusedSumAreAMismatch) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    std::vector<float> a(5), b(3);
    communicator->begin_group();
    for (auto* values : world.rank == 0 ? std::array{&a, &b} : std::array{&b, &a})
      communicator->all_reduce(values->data(), values->data(),
                               static_cast<std::int64_t>(values->size()), DType::f32,
                               ReduceOp::sum);
    communicator->end_group()->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("all_reduce of 8 f32, sum, fused of other calls of a group")));
}

TEST(Groups, AFusedCallMismatchesASingleOneOfTheSameLength) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    std::vector<float> a(8);
    const auto sum = [&](std::int64_t begin, std::int64_t count) {
      return communicator->all_reduce(&a[static_cast<std::size_t>(begin)],
                                      &a[static_cast<std::size_t>(begin)], count, DType::f32,
                                      ReduceOp::sum);
    };
    if (world.rank == 1) return sum(0, 8)->wait();
    communicator->begin_group();
    sum(0, 5);
    sum(5, 3);
    communicator->end_group()->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("all_reduce of 8 f32, sum, fused of other calls of a group")));
}

TEST(Split, MakesGroupsOrderedByKeyThatOutliveTheirParent) {
  shoal::test::run_thread_ranks(5, [](const World& world, Store& store) {
    auto parent = make_communicator(world, store, options());
    // Even and odd ranks, each in reverse order. Rank 4 is in no group.
    const auto part = parent->split(world.rank == 4 ? -1 : world.rank % 2, -world.rank);
    const auto again = parent->split(0, 0);
    parent.reset();
    ASSERT_EQ(again->size(), 5);
    EXPECT_EQ(again->rank(), world.rank);
    if (world.rank == 4) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    ASSERT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), world.rank < 2 ? 1 : 0);
    Buffer buffer(part->memory_resource(), 40000, MemoryTag::gradients);
    auto* values = static_cast<std::int32_t*>(buffer.data());
    std::fill_n(values, 10000, world.rank);
    part->all_reduce(values, values, 10000, DType::i32, ReduceOp::sum)->wait();
    EXPECT_EQ(values[9999], world.rank % 2 == 0 ? 2 : 4);
    EXPECT_EQ(part->statistics().zero_copy, 1);
    const auto alone = part->split(part->rank(), 0);
    ASSERT_EQ(alone->size(), 1);
    alone->barrier()->wait();
  });
}

TEST(Split, NamesRanksByTheirNumbersInTheJob) {
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto part =
        make_communicator(world, store, options())->split(world.rank == 0 ? -1 : 0, 0);
    if (!part) return;
    const Numbers counts{4, 4};
    Numbers sent = counts;
    if (part->rank() == 0) sent[1] = 3;
    std::vector<float> send(8), recv(8);
    part->all_to_all_v(send.data(), sent, recv.data(), counts, DType::f32)->wait();
  });
  for (const int rank : {1, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                HasSubstr("rank 1 sends 3 elements to rank 2, which expects 4"));
}

TEST(Split, NamesTheRankThatDoesNotCallIt) {
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options(world.rank == 0 ? 1.5 : 60));
    try {
      if (world.rank != 2) communicator->split(0, 0);
    } catch (const Error&) {
      store.set("given up", "");
      throw;
    }
    store.get("given up", Deadline::in_seconds(60));
  });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("split"), HasSubstr("missing: rank 2 (it has not called")));
  EXPECT_EQ(errors[2].find("split"), std::string::npos);
}

TEST(Split, NamesARankThatMakesAnotherCall) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options());
    if (world.rank == 0)
      communicator->split(0, 0);
    else
      communicator->barrier()->wait();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 0 called split, rank 1 called barrier"));
}

TEST(Options, WithoutADeadlineUseTheEnvironments) {
  ASSERT_EQ(::setenv("SHOAL_DEADLINE_S", "1.5", 1), 0);
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, {});
    if (world.rank == 1) {  // long after that deadline, and long before the default one
      store.get("given up", Deadline::in_seconds(60));
      return;
    }
    try {
      communicator->barrier()->wait();
    } catch (const Error&) {
      store.set("given up", "");
      throw;
    }
  });
  ::unsetenv("SHOAL_DEADLINE_S");
  EXPECT_THAT(errors[0], HasSubstr("did not finish within"));
  EXPECT_EQ(errors[1], "");
}

}  // namespace
}  // namespace shoal::collectives
