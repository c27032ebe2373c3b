// Errors name ranks by their numbers in the job, whichever split group (a pipeline's, a host's) met
// them. They name a recv as a recv, although it is compared as its sender's send.
#include <csignal>

#include "loopback_ranks.h"
#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/native/group.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using shoal::test::sleep_seconds;
using shoal::test::with_deadline;
using test::LoopbackRanks;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// A group of all ranks but 0.
std::unique_ptr<Communicator> part_of(Communicator& whole) {
  return whole.split(whole.rank() == 0 ? -1 : 0, 0);
}

// Ranks 1 and 2 of the job, which are 0 and 1 of the group, disagree about a message.
void disagree(Communicator& whole, std::int64_t sent, std::int64_t expected) {
  const auto part = part_of(whole);
  if (!part) return;
  std::vector<float> x(static_cast<std::size_t>(std::max(sent, expected)));
  if (whole.rank() == 1) {
    part->send(x.data(), sent, DType::f32, 1)->wait();
    part->barrier()->wait();  // a small message leaves at once
  } else {
    part->recv(x.data(), expected, DType::f32, 0)->wait();
  }
}

auto names_the_two(std::int64_t sent, std::int64_t expected) {
  return AllOf(HasSubstr(fmt::format("rank 1 called send of {} f32 to rank 2", sent)),
               HasSubstr(fmt::format("rank 2 called recv of {} f32 from rank 1", expected)));
}

TEST(PartNames, AreTheJobsForMismatchesInSharedMemory) {
  for (const std::int64_t count : {5, 50000}) {
    const auto errors =
        shoal::test::thread_rank_errors(3, [count](const World& world, Store& store) {
          const auto c = make_communicator(world, store, with_deadline(2));
          disagree(*c, count, 4);
        });
    EXPECT_THAT(errors[2], AllOf(names_the_two(count, 4), HasSubstr("[rank 2, peer 1"),
                                 HasSubstr("message 1 from rank 1")));
  }
}

TEST(PartNames, AreTheJobsForMismatchesOverAnEndpoint) {
  for (const std::int64_t count : {5, 50000}) {
    const LoopbackRanks loopback(3);
    const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
      const auto c = loopback.communicator(world, store, with_deadline(5));
      disagree(*c, count, count + 1);
    });
    for (const int rank : {1, 2})
      EXPECT_THAT(errors[static_cast<std::size_t>(rank)], names_the_two(count, count + 1));
  }
}

TEST(PartNames, AreTheJobsForMismatchesOverTcp) {
  if (fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  for (const std::int64_t count : {5, 50000}) {
    ProcessRanks ranks(3, [count](const World& world, Store& store) {
      CommunicatorOptions options = with_deadline(10);
      options.transport = "tcp";
      disagree(*make_communicator(world, store, options), count, count + 1);
    });
    const auto outcomes = ranks.wait(30);
    for (const int rank : {1, 2})
      EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].error, names_the_two(count, count + 1));
  }
}

TEST(PartNames, AreTheJobsForAMissingMessageOverAnEndpoint) {
  const LoopbackRanks loopback(3);
  const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto part = part_of(*loopback.communicator(world, store, with_deadline(0.5)));
    std::vector<float> x(4);
    try {
      if (world.rank == 2) part->recv(x.data(), 4, DType::f32, 0)->wait();
    } catch (const Error&) {
      store.set("given up", "");
      throw;
    }
    store.get("given up", Deadline::in_seconds(20));
  });
  EXPECT_THAT(errors[2], HasSubstr("recv of 4 f32 from rank 1 (#0) did not finish"));
}

TEST(PartNames, AreTheJobsForARankKilledDuringAMessage) {
  ProcessRanks ranks(3, [](const World& world, Store& store) {
    const auto part = part_of(*make_communicator(world, store, with_deadline(60)));
    ProcessRanks::say_ready(store);
    std::vector<float> x(4);
    if (world.rank == 2) part->recv(x.data(), 4, DType::f32, 0)->wait();
    if (world.rank == 1) sleep_seconds(60);
  });
  ASSERT_TRUE(ranks.wait_until_ready(20, 3));
  ranks.send_signal(1, SIGKILL);
  EXPECT_THAT(ranks.wait(20)[2].error, AllOf(HasSubstr("rank 1 died"), HasSubstr("[rank 2, peer 1"),
                                             HasSubstr("recv of 4 f32 from rank 1")));
}

// Errors that a Group itself reports: while it forms, and where it copies between processes.
TEST(PartNames, AreTheJobsForErrorsOfAGroup) {
  const auto store = make_hash_store();
  try {
    const native::Group group(0, 2, *store, "forming", Deadline::in_seconds(0.2), {5, 7});
    ADD_FAILURE() << "the group formed without rank 7";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank(s) 7 did not join the group"));
    EXPECT_EQ(error.rank(), 5);
    EXPECT_EQ(error.peer(), 7);
  }
  shoal::test::run_thread_ranks(2, [](const World& world, Store& ranks) {
    const auto deadline = Deadline::in_seconds(20);
    native::Group group(world.rank, 2, ranks, "part", deadline, {5, 7});
    if (world.rank == 0) {
      std::uint64_t found = 0;
      try {
        group.read_memory(1, 8, &found, sizeof found);
        ADD_FAILURE() << "memory of a missing address was read";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("cannot reach the memory of rank 7"));
        EXPECT_EQ(error.rank(), 5);
        EXPECT_EQ(error.peer(), 7);
      }
    }
    ranks.set(fmt::format("done/{}", world.rank), "");
    ranks.get(fmt::format("done/{}", 1 - world.rank), deadline);
  });
}

// The group's hosts hold ranks 1 and 2, and ranks 3 and 4 of the job. Steps inside a host fail
// first.
TEST(PartNames, AreTheJobsForOperationsByLevels) {
  const LoopbackRanks loopback(5);
  const auto errors = shoal::test::thread_rank_errors(5, [&](const World& world, Store& store) {
    const auto c =
        loopback.hierarchical(world, store, {"a", "a", "a", "b", "b"}, with_deadline(10));
    const auto part = part_of(*c);
    if (!part) return;
    std::vector<float> x(5000);
    part->all_reduce(x.data(), x.data(), world.rank == 2 ? 4999 : 5000, DType::f32, ReduceOp::sum)
        ->wait();
  });
  for (const int rank : {1, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AnyOf(HasSubstr(fmt::format("[rank {}, peer {}", rank, 3 - rank)),
                      HasSubstr(fmt::format("[rank {}, peer 3", rank)),
                      HasSubstr(fmt::format("[rank {}, peer 4", rank))));
}

TEST(PartNames, AreTheJobsForAGroupOfOneRank) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(20));
    const auto alone = c->split(world.rank, 0);
    alone->abort("enough");
    try {
      alone->barrier();
      ADD_FAILURE() << "the call was not aborted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} aborted: enough", world.rank)));
    }
    c->barrier()->wait();
  });
}

}  // namespace
}  // namespace shoal::collectives
