// Ranks that need no data from others do not wait for them (backend/native/run_ahead.cc). Tests
// data, order, the limit, and that errors meanwhile are still named.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using test::ProcessRanks;
using test::with_deadline;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kPatience = 60;

// In the first cache line of a slot, in further lines, and the longest inline message.
constexpr std::array<std::int64_t, 3> kCounts{2, 100, 2048};

float value_of(int operation, std::int64_t element) {
  return static_cast<float>((operation * 31 + element) % 10007);
}

void fill(std::vector<float>& x, int operation, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[static_cast<std::size_t>(i)] = value_of(operation, i);
}

bool is_filled(const std::vector<float>& x, int operation, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    if (x[static_cast<std::size_t>(i)] != value_of(operation, i)) return false;
  return true;
}

void broadcast(Communicator& c, std::vector<float>& x, std::int64_t count, int root) {
  c.broadcast(x.data(), count, DType::f32, root)->wait();
}

TEST(RunAhead, ARankDoesNotWaitForRanksWhoseDataItDoesNotNeed) {
  test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(kPatience));
    std::vector<float> x(kCounts.back());
    for (const std::int64_t count : kCounts) {
      // Each rank starts after the one before it has finished, so no rank may wait for a later one.
      const auto done = [&](int rank) { return fmt::format("rank {} of {}", rank, count); };
      if (world.rank > 0) store.get(done(world.rank - 1), Deadline::in_seconds(kPatience));
      for (int i = 0; i < static_cast<int>(transport::kLead); ++i) {
        if (world.rank == 0) fill(x, i, count);
        broadcast(*c, x, count, 0);
        ASSERT_TRUE(is_filled(x, i, count)) << i << " of " << count;
        if (world.rank == 0) fill(x, -1, count);  // the caller may reuse the buffer
      }
      store.set(done(world.rank), "");
      c->barrier()->wait();
    }
  });
}

TEST(RunAhead, StopsBeforeASlotIsReused) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(world.rank == 0 ? 1 : kPatience));
    std::vector<float> x(2);
    if (world.rank == 1) {
      store.get("given up", Deadline::in_seconds(kPatience));
      return;
    }
    for (std::uint32_t i = 0; i < transport::kLead; ++i) broadcast(*c, x, 2, 0);
    const WorkPtr one_more = c->broadcast(x.data(), 2, DType::f32, 0);
    EXPECT_FALSE(one_more->test());
    try {
      one_more->wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout);
      EXPECT_EQ(error.peer(), 1);
      store.set("given up", "");
      throw;
    }
    store.set("given up", "");
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("broadcast of 2 f32, root 0 (#9) did not finish within"),
                               HasSubstr("rank 1 (it has not called anything yet)")));
}

TEST(RunAhead, WaitsForASlotWithoutADrivingCaller) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(kPatience));
    constexpr int kCalls = 3 * static_cast<int>(transport::kLead);
    std::vector<std::vector<float>> buffers(kCalls, std::vector<float>(100));
    std::vector<WorkPtr> works;
    for (int i = 0; i < kCalls; ++i) {
      auto& x = buffers[static_cast<std::size_t>(i)];
      if (world.rank == 0) fill(x, i, 100);
      works.push_back(c->broadcast(x.data(), 100, DType::f32, 0));
    }
    const auto start = Clock::now();
    while (c->statistics().operations < kCalls && seconds_since(start) < kPatience)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 0; i < kCalls; ++i) {
      EXPECT_TRUE(works[static_cast<std::size_t>(i)]->test()) << i;
      EXPECT_TRUE(is_filled(buffers[static_cast<std::size_t>(i)], i, 100)) << i;
    }
  });
}

// 10^5 with SHOAL_TEST_FULL.
int many() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 4'000;
#else
  const char* value = std::getenv("SHOAL_TEST_FULL");
  return value && std::string_view(value) == "1" ? 100'000 : 20'000;
#endif
}

// Operation `i` in a random order that all ranks share: changing roots, other operations in
// between, and now and then a late rank.
void one_of_many(Communicator& c, std::vector<float>& x, int i) {
  const int rank = c.rank(), size = c.size(), late = i / 1000 % size;
  if (rank == late && i % 97 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  const auto draw = static_cast<unsigned>(i) * 2654435761U >> 8;
  const std::int64_t count = kCounts[draw % kCounts.size()];
  if (draw % 16 == 0) {
    float sum = static_cast<float>(rank);
    c.all_reduce(&sum, &sum, 1, DType::f32, ReduceOp::sum)->wait();
    const int all = size * (size - 1) / 2;
    ASSERT_EQ(sum, static_cast<float>(all));
  } else if (draw % 16 == 1) {
    c.barrier()->wait();
  } else if (draw % 256 == 2) {
    c.all_reduce(x.data(), x.data(), 2048, DType::f32, ReduceOp::max)->wait();
  } else {
    // Long stretches with one root, and stretches in which the root changes each time.
    const int root = i / 500 % 2 == 0 ? i / 500 % size : static_cast<int>(draw / 16 % 7) % size;
    if (rank == root) fill(x, i, count);
    broadcast(c, x, count, root);
    ASSERT_TRUE(is_filled(x, i, count)) << "operation " << i << " of root " << root;
  }
}

TEST(RunAhead, ManyOperationsOfManyRootsKeepTheirOrder) {
  test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(kPatience));
    std::vector<float> x(kCounts.back());
    for (int i = 0; i < many() && !::testing::Test::HasFatalFailure(); ++i) one_of_many(*c, x, i);
  });
}

// The others stay at 0xffffffff while the root continues past 0 to the end of its lead.
TEST(RunAhead, SurvivesTheWrapOfSequenceNumbers) {
  constexpr int kLast = 20;
  constexpr std::uint32_t kFirst = 0xffffffffU - kLast;
  constexpr int kOneMore = kLast + static_cast<int>(transport::kLead) + 1;
  test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto deadline = Deadline::in_seconds(kPatience);
    auto group = std::make_shared<native::Group>(world.rank, world.size, store, "wrap", deadline);
    group->own_page().place.store(transport::place_of(kFirst - 1, 0));
    barrier(store, "placed", world.size, deadline);
    native::Engine engine(group, native::PlanChoice({}, 3), kPatience,
                          FlightRecorder("wrap", world.rank, {0, 1, 2}), kFirst);
    std::vector<float> x(100);
    for (int i = 0; i < 60; ++i) {
      const int root = i <= kOneMore ? 0 : i % 3;
      if (world.rank != 0 && i == kLast + 1) store.get("ahead", deadline);
      if (world.rank == root) fill(x, i, 100);
      Call call{Operation::broadcast, x.data(), x.data(), 100, DType::f32, ReduceOp::sum, root};
      WorkPtr work = engine.repeat(call.plain());
      if (!work) work = engine.submit(std::move(call));
      if (world.rank == 0 && i == kOneMore) {
        EXPECT_FALSE(work->test());
        store.set("ahead", "");
      }
      work->wait(deadline);
      ASSERT_TRUE(is_filled(x, i, 100)) << i;
    }
  });
}

// Rank 1 receives another count. The root is far ahead by then, and the other receiver agreed with
// it.
TEST(RunAhead, AMismatchThatAReceiverFindsFailsAllRanks) {
  std::array<int, 3> calls{};
  const auto errors = test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(kPatience));
    std::vector<float> x(8, 7.0f);
    try {
      for (int i = 1; i < 1000; ++i) {
        calls[static_cast<std::size_t>(world.rank)] = i;
        broadcast(*c, x, world.rank == 1 && i == 5 ? 3 : 2, 0);
        if (world.rank == 0 && i == 7) {
          store.set("ahead", "");
          store.get("found", Deadline::in_seconds(kPatience));
        }
        if (world.rank == 1 && i == 4) store.get("ahead", Deadline::in_seconds(kPatience));
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
      EXPECT_THROW(c->barrier(), Error);
      if (world.rank == 1) store.set("found", "");
      throw;
    }
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("ranks called different operations"),
                             HasSubstr("rank 1 called broadcast of 3 f32, root 0"),
                             HasSubstr("called broadcast of 2 f32, root 0"), HasSubstr("(#5)")));
  EXPECT_EQ(calls[0], 8);  // the next call fails
  EXPECT_EQ(calls[1], 5);
  EXPECT_LE(calls[2], 5 + static_cast<int>(transport::kLead));
}

// Both roots finish at once: neither receives, so no rank compares while the operation runs.
TEST(RunAhead, TwoRootsOfOneBroadcastAreNamedByTheNextCall) {
  for (const int wrong : {1, 1000}) {  // broadcasts before the barrier, unless one fails
    std::array<int, 2> calls{};
    const auto errors = test::thread_rank_errors(2, [&](const World& world, Store& store) {
      const auto c = make_communicator(world, store, with_deadline(kPatience));
      std::vector<float> x(2);
      broadcast(*c, x, 2, 0);
      try {
        for (int& i = calls[static_cast<std::size_t>(world.rank)]; i < wrong; ++i)
          broadcast(*c, x, 2, world.rank);
        c->barrier()->wait();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
        throw;
      }
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error,
                  AllOf(HasSubstr("rank 0 called broadcast of 2 f32, root 0"),
                        HasSubstr("rank 1 called broadcast of 2 f32, root 1"), HasSubstr("(#2)")));
    for (const int done : calls) EXPECT_LE(done, static_cast<int>(transport::kLead));
  }
}

TEST(RunAhead, MessagesOfADeadRootAreReceived) {
  constexpr int kSent = 5;
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(kPatience));
    std::vector<float> x(100);
    if (world.rank == 0) {
      for (int i = 0; i < kSent; ++i) {
        fill(x, i, 100);
        broadcast(*c, x, 100, 0);
      }
      store.set("sent", "");
      std::raise(SIGKILL);
    }
    store.get("sent", Deadline::in_seconds(kPatience));
    // Time for the death to become known. The rest holds before and after.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (int i = 0; i < kSent; ++i) {
      broadcast(*c, x, 100, 0);
      if (!is_filled(x, i, 100)) throw_error(ErrorCode::internal, "wrong data of {}", i);
    }
    broadcast(*c, x, 100, 0);
  });
  const auto outcomes = ranks.wait(kPatience);
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_EQ(outcomes[1].exit_status, 1);
  EXPECT_THAT(outcomes[1].error, AllOf(HasSubstr("rank 0 died"), HasSubstr("(#6)")));
}

TEST(RunAhead, MessagesOfARootThatLeftAreReceived) {
  const auto errors = test::thread_rank_errors(3, [](const World& world, Store& store) {
    auto c = make_communicator(world, store, with_deadline(kPatience));
    std::vector<float> x(100);
    if (world.rank == 0) {
      for (int i = 0; i < 3; ++i) {
        fill(x, i, 100);
        broadcast(*c, x, 100, 0);
      }
      c.reset();
      store.set("left", "");
      return;
    }
    store.get("left", Deadline::in_seconds(kPatience));
    for (int i = 0; i < 3; ++i) {
      broadcast(*c, x, 100, 0);
      EXPECT_TRUE(is_filled(x, i, 100)) << i;
    }
    broadcast(*c, x, 100, 0);
  });
  for (const int rank : {1, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("rank 0 left the group (it last called broadcast of 100 f32, root "
                                "0 (#3))"),
                      HasSubstr("(#4)")));
}

TEST(RunAhead, AnAbortReachesTheRootByItsNextCall) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(kPatience));
    std::vector<float> x(2);
    broadcast(*c, x, 2, 0);
    if (world.rank == 1) {
      c->abort("enough");
      store.set("aborted", "");
    }
    store.get("aborted", Deadline::in_seconds(kPatience));
    broadcast(*c, x, 2, 0);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 1 aborted: enough"));
}

// Other ranks may be late as well, but this rank does not wait for them.
TEST(RunAhead, AReceiverThatGivesUpNamesTheRootOnly) {
  const auto errors = test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, with_deadline(world.rank == 1 ? 1 : kPatience));
    c->barrier()->wait();
    std::vector<float> x(2);
    if (world.rank == 1) {
      try {
        broadcast(*c, x, 2, 0);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::timeout);
        store.set("given up", "");
        throw;
      }
    }
    store.get("given up", Deadline::in_seconds(kPatience));
    c->barrier()->wait();
  });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("broadcast of 2 f32, root 0 (#2) did not finish within"),
                               HasSubstr("missing: rank 0 (it last called barrier (#1))"),
                               Not(HasSubstr("rank 2"))));
}

}  // namespace
}  // namespace shoal::collectives
