// Errors must name the cause: dead, stalled, leaving and disagreeing ranks.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "at_best.h"
#include "support/calls.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/collectives/backend/movable_deadline.h"
#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/communicator.h"
#include "shoal/collectives/diagnosis/diagnose.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives {
namespace {

using shoal::test::sleep_seconds;
using shoal::test::sum;
using shoal::test::with_deadline;
using test::ProcessRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const char* folder : {"/dev/shm", "/dev/mqueue"}) {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(folder, absent))
      // Ignore files of other programs on this machine.
      if (entry.path().filename().string().find("shoal") != std::string::npos)
        names.insert(entry.path());
  }
  return names;
}

class KilledRank : public ::testing::TestWithParam<std::tuple<int, std::int64_t>> {};

double seconds_to_name_a_killed_rank(int size, std::int64_t count) {
  const auto files_before = shared_files();
  const int victim = size - 1;
  ProcessRanks ranks(size, [count](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(60));
    std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
    sum(*communicator, values);
    ProcessRanks::say_ready(store);
    for (;;) sum(*communicator, values);
  });
  EXPECT_TRUE(ranks.wait_until_ready(20, size));
  const auto killed = Clock::now();
  ranks.send_signal(victim, SIGKILL);
  const auto outcomes = ranks.wait(10);
  const double seconds = seconds_since(killed);
  for (int rank = 0; rank < size; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    if (rank == victim) {
      EXPECT_EQ(outcome.signal, SIGKILL);
      continue;
    }
    EXPECT_EQ(outcome.exit_status, 1);
    // A survivor may first see another survivor's end, whose last words name the victim too.
    EXPECT_THAT(outcome.error, HasSubstr(fmt::format("rank {} died", victim)));
    EXPECT_THAT(outcome.error, HasSubstr("all_reduce of"));
  }
  EXPECT_EQ(shared_files(), files_before);
  return seconds;
}

TEST_P(KilledRank, IsNamedByEverySurvivorWithinASecond) {
  const auto& [size, count] = GetParam();
  const auto once = [ranks = size, elements = count] {
    return seconds_to_name_a_killed_rank(ranks, elements);
  };
  EXPECT_LT(shoal::test::at_best(1, once), 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, KilledRank,
                         ::testing::Combine(::testing::Values(2, 3, 5),
                                            ::testing::Values(2, 100000, 3000001)));

TEST(KilledRanks, AreNoticedWhileTheGroupForms) {
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    if (world.rank == 1) {
      ProcessRanks::say_ready(store);
      sleep_seconds(60);
    }
    make_communicator(world, store, with_deadline(1));
  });
  ASSERT_TRUE(ranks.wait_until_ready(20, 1));
  ranks.send_signal(1, SIGKILL);
  const auto outcomes = ranks.wait(10);
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank(s) 1 did not join the group in time"));
}

TEST(StalledRank, IsNamedWhenTheDeadlinePasses) {
  ProcessRanks ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(1.0));
    std::vector<float> values(17, 1.0f);
    sum(*communicator, values);
    ProcessRanks::say_ready(store);
    if (world.rank == 1) sleep_seconds(60);
    communicator->barrier()->wait();
  });
  ASSERT_TRUE(ranks.wait_until_ready(20, 3));
  const auto start = Clock::now();
  sleep_seconds(0.1);
  ranks.send_signal(1, SIGSTOP);
  sleep_seconds(2.5);
  ranks.send_signal(1, SIGKILL);
  const auto outcomes = ranks.wait(10);
  EXPECT_LT(seconds_since(start), 4.0);
  // The first rank to give up names the stalled rank. The other may quote it instead.
  for (const int rank : {0, 2})
    EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].error,
                AllOf(HasSubstr("barrier (#2) did not finish within"),
                      HasSubstr("rank 1 (it last called all_reduce of 17 f32, sum (#1))")));
}

class MovedDeadline : public ::testing::TestWithParam<const char*> {};

TEST_P(MovedDeadline, BoundsLaterWaits) {
  if (GetParam() == std::string("tcp") && fabric::fabric_providers().empty())
    GTEST_SKIP() << "built without libfabric";
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    auto options = with_deadline(60);
    options.transport = GetParam();
    const auto communicator = make_communicator(world, store, options);
    if (world.rank == 1) return (void)store.get("noticed", Deadline::in_seconds(30));
    dynamic_cast<MovableDeadline&>(*communicator).set_deadline_seconds(0.3);
    const auto start = Clock::now();
    EXPECT_THROW(communicator->barrier()->wait(), Error);
    EXPECT_LT(seconds_since(start), 10);
    store.set("noticed", "");
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, MovedDeadline, ::testing::Values("shm", "tcp"));

TEST(StalledRank, KeepsTheProgressThreadFromBurningACore) {
  test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(30));
    std::vector<float> values(100000, 1.0f);
    std::clock_t before = 0, after = 0;
    if (world.rank == 0) {
      auto work =
          communicator->all_reduce(values.data(), values.data(), 100000, DType::f32, ReduceOp::sum);
      before = std::clock();  // CPU time of the whole process, that is, of both ranks
      sleep_seconds(0.5);
      after = std::clock();
      work->wait();
    } else {
      sleep_seconds(0.6);
      sum(*communicator, values);
    }
    EXPECT_LT(static_cast<double>(after - before) / CLOCKS_PER_SEC, 0.1);
  });
}

TEST(LeavingRank, IsNamedWithWhatItLastCalled) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(10));
    std::vector<float> values(8);
    sum(*communicator, values);
    if (world.rank == 1) return;
    sum(*communicator, values);
  });
  EXPECT_THAT(errors[0],
              HasSubstr("rank 1 left the group (it last called all_reduce of 8 f32, sum (#1))"));
}

TEST(LeavingRank, MayLeaveOnceItsOwnOperationsAreDone) {
  for (int round = 0; round < 50; ++round)
    test::run_thread_ranks(4, [](const World& world, Store& store) {
      const auto communicator = make_communicator(world, store, with_deadline(10));
      std::vector<float> values(5000, 1.0f);
      sum(*communicator, values);
      EXPECT_EQ(values[4999], 4.0f);
    });
}

TEST(FailedRank, IsNamedAlthoughItKeepsRunning) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(world.rank ? 1 : 30));
    communicator->barrier()->wait();
    if (world.rank == 1) {
      try {
        communicator->barrier()->wait();  // this rank only
      } catch (const Error&) {
        store.set("failed", "");
        store.get("named", Deadline::in_seconds(40));
        throw;
      }
    }
    store.get("failed", Deadline::in_seconds(20));
    communicator->barrier()->wait();  // rank 1 did take part in this one
    const auto start = Clock::now();
    try {
      communicator->barrier()->wait();
    } catch (const Error& error) {
      store.set("named", "");
      EXPECT_EQ(error.code(), ErrorCode::peer_lost);
      EXPECT_LT(seconds_since(start), 5);
      throw;
    }
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 failed (its last words: barrier (#2) did not"),
                               HasSubstr("barrier (#3)")));
}

// A call that rank 1 makes instead of rank 0's all_reduce of 100 f32, sum.
struct Difference {
  std::string text;
  std::function<std::unique_ptr<Work>(Communicator&, float*)> call;
};

class Mismatch : public ::testing::TestWithParam<int> {};

TEST_P(Mismatch, IsNamedOnEveryRankBeforeDataMoves) {
  const std::vector<Difference> differences{
      {"all_reduce of 99 f32, sum",
       [](Communicator& c, float* x) { return c.all_reduce(x, x, 99, DType::f32, ReduceOp::sum); }},
      {"all_reduce of 100 i32, sum",
       [](Communicator& c, float* x) {
         return c.all_reduce(x, x, 100, DType::i32, ReduceOp::sum);
       }},
      {"all_reduce of 100 f32, max",
       [](Communicator& c, float* x) {
         return c.all_reduce(x, x, 100, DType::f32, ReduceOp::max);
       }},
      {"broadcast of 100 f32, root 0",
       [](Communicator& c, float* x) { return c.broadcast(x, 100, DType::f32, 0); }},
      {"barrier", [](Communicator& c, float*) { return c.barrier(); }},
      {"all_reduce of 100000 f32, sum", [](Communicator& c, float* x) {
         return c.all_reduce(x, x, 100000, DType::f32, ReduceOp::sum);
       }}};
  const Difference& difference = differences[static_cast<std::size_t>(GetParam())];
  std::vector<int> untouched(3, 1);
  const auto errors = test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(10));
    std::vector<float> values(100000, 7.0f);
    try {
      if (world.rank == 1)
        difference.call(*communicator, values.data())->wait();
      else
        sum(*communicator, values.data(), 100);
    } catch (const Error& error) {
      for (const float value : values)
        untouched[static_cast<std::size_t>(world.rank)] &= value == 7.0f;
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      // Later calls throw the same failure.
      EXPECT_THROW(communicator->barrier(), Error);
      throw;
    }
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 0 called all_reduce of 100 f32, sum"),
                               HasSubstr("rank 1 called " + difference.text)));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1 called " + difference.text),
                               HasSubstr("called all_reduce of 100 f32, sum")));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 called " + difference.text));
  EXPECT_EQ(untouched, std::vector<int>(3, 1));
}

INSTANTIATE_TEST_SUITE_P(Differences, Mismatch, ::testing::Range(0, 6));

TEST(Mismatch, OfForcedAlgorithmsIsNamed) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(10);
    if (world.rank == 1) options.algorithm = "ring";
    std::vector<float> values(10);
    const auto communicator = make_communicator(world, store, options);
    sum(*communicator, values);
  });
  EXPECT_THAT(errors[0], HasSubstr("with algorithm inline and ring"));
}

TEST(Mismatch, OfSelectionTablesIsNamed) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(10);
    if (world.rank == 1) options.collectives = "all_reduce:0-1k:@direct";
    std::vector<float> values(10);
    const auto communicator = make_communicator(world, store, options);
    sum(*communicator, values);
  });
  EXPECT_THAT(errors[0], HasSubstr("with algorithm inline and direct"));
}

TEST(Abort, EndsWaitsOnAllRanksAndReportsWhy) {
  const auto errors = test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(30));
    communicator->barrier()->wait();
    const auto start = Clock::now();
    if (world.rank == 2) {
      sleep_seconds(0.1);
      communicator->abort("loss is NaN");
    }
    try {
      communicator->barrier()->wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_EQ(error.peer(), 2);
      EXPECT_LT(seconds_since(start), 1.5);
      throw;
    }
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("rank 2 aborted: loss is NaN"));
}

TEST(Abort, FromAnotherThreadEndsTheRanksOwnWait) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, with_deadline(30));
    communicator->barrier()->wait();
    std::thread watcher;
    if (world.rank == 0)
      watcher = std::thread([&] {
        sleep_seconds(0.1);
        communicator->abort("watchdog");
        store.set("aborted", "");
      });
    else
      store.get("aborted", Deadline::in_seconds(30));
    struct Join {
      std::thread& thread;
      ~Join() {
        if (thread.joinable()) thread.join();
      }
    } const join{watcher};
    communicator->barrier()->wait();
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("rank 0 aborted: watchdog"));
}

TEST(Hosts, MoreThanOneCannotShareMemory) {
  // A card that a rank of another machine with the same host name would publish.
  const auto store = make_hash_store();
  store->set("p/card/1", "another-host\n\n\n\n\n1\nsocket");
  try {
    const transport::PeerLinks links(0, 2, *store, "p", Deadline::in_seconds(5));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 on 'another-host': they cannot share memory"),
                                    HasSubstr("SHOAL_HOST_NAME")));
  }
}

TEST(Hosts, ShmAmongSeveralIsRefused) {
  const auto errors = test::thread_rank_errors(2, [](World world, Store& store) {
    world.host = world.rank == 0 ? "a" : "b";
    CommunicatorOptions options = with_deadline(5);
    options.transport = "shm";
    make_communicator(world, store, options);
  });
  EXPECT_THAT(errors[0], HasSubstr("transport shm, but the 2 ranks are on 2 hosts"));
}

TEST(Flight, DumpsOfAllRanksTogetherNameTheMissingRank) {
  const testing::TemporaryDirectory directory;
  const auto errors = test::thread_rank_errors(3, [&](const World& world, Store& store) {
    // This is long enough to form the group on a busy machine.
    CommunicatorOptions options = with_deadline(2);
    options.flight_directory = directory.path();
    const auto communicator = make_communicator(world, store, options);
    std::vector<float> values(5000, 1.0f), small(16, 1.0f);
    sum(*communicator, values);
    if (world.rank != 1) sum(*communicator, small);
    // Rank 1 keeps running, but does not make the others' call until they have given up.
    if (world.rank == 1) sleep_seconds(3);
    communicator->barrier()->wait();
  });
  for (const std::string& error : errors) EXPECT_FALSE(error.empty());
  std::vector<FlightDump> dumps;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    dumps.push_back(read_flight_dump(entry.path()));
  ASSERT_EQ(dumps.size(), 3U);
  const auto found = diagnose(dumps);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].sequence, 2U);
  EXPECT_THAT(found[0].culprits, ::testing::ElementsAre(1));
  EXPECT_THAT(found[0].summary, HasSubstr("all_reduce of 16 f32, sum"));
}

TEST(Flight, DumpsOfAllRanksTogetherNameTheMissingMessage) {
  const testing::TemporaryDirectory directory;
  (void)test::thread_rank_errors(2, [&](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(2);
    options.flight_directory = directory.path();
    const auto c = make_communicator(world, store, options);
    std::vector<float> values(4);
    if (world.rank == 1) c->send(values.data(), 4, DType::f32, 0)->wait();
    if (world.rank == 0) c->recv(values.data(), 4, DType::f32, 1)->wait();
    try {
      if (world.rank == 0) c->recv(values.data(), 4, DType::f32, 1)->wait();
    } catch (const Error&) {
      store.set("given up", "");
      throw;
    }
    store.get("given up", Deadline::in_seconds(20));
    c->barrier()->wait();
  });
  std::vector<FlightDump> dumps;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    dumps.push_back(read_flight_dump(entry.path()));
  ASSERT_EQ(dumps.size(), 2U);
  EXPECT_THAT(diagnose(dumps)[0].details,
              ::testing::Contains(HasSubstr("; open: recv of 4 f32 from rank 1 (message 2), ")));
}

void run(native::Engine& engine, Call&& call, Deadline deadline) {
  WorkPtr work = engine.repeat(call.plain());
  if (!work) work = engine.submit(std::move(call));
  work->wait(deadline);
}

// Sequence numbers and slot indices wrap around here, which must cause no hang and no mismatch.
TEST(Engine, SurvivesTheWrapOfItsSequenceNumbers) {
  constexpr std::uint32_t kFirst = 0xffffffffu - 20;
  test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto deadline = Deadline::in_seconds(20);
    auto group = std::make_shared<native::Group>(world.rank, world.size, store, "wrap", deadline);
    group->own_page().place.store(transport::place_of(kFirst - 1, 0));
    barrier(store, "placed", world.size, deadline);
    native::Engine engine(group, native::PlanChoice({}, 3), 20,
                          FlightRecorder("wrap", world.rank, {0, 1, 2}), kFirst);
    std::vector<float> values(3000), small(3);
    for (int i = 0; i < 50; ++i)
      for (std::vector<float>* buffer : {&values, &small}) {
        std::fill(buffer->begin(), buffer->end(), 1.0f);
        Call call{Operation::all_reduce,
                  buffer->data(),
                  buffer->data(),
                  static_cast<std::int64_t>(buffer->size()),
                  DType::f32,
                  ReduceOp::sum,
                  -1};
        run(engine, std::move(call), deadline);
        ASSERT_EQ(buffer->back(), 3.0f) << i;
      }
  });
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

// As many operations as in a day of training, with a wrap in the middle. SHOAL_TEST_FULL: 10^6.
std::int64_t many(std::int64_t by_default, std::int64_t full) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  by_default /= 20;
  full /= 20;
#endif
  const char* value = std::getenv("SHOAL_TEST_FULL");
  return value && std::string_view(value) == "1" ? full : by_default;
}

TEST(ManyOperations, LeaveMemoryFlatInSharedMemory) {
  const std::int64_t operations = many(30'000, 1'000'000);
  const auto first = 0xffffffffu - static_cast<std::uint32_t>(operations / 2);
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto deadline = Deadline::in_seconds(100);
    auto group = std::make_shared<native::Group>(world.rank, world.size, store, "many", deadline);
    group->own_page().place.store(transport::place_of(first - 1, 0));
    barrier(store, "placed", world.size, deadline);
    native::Engine engine(group, native::PlanChoice({}, 2), 100,
                          FlightRecorder("many", world.rank, {0, 1}), first);
    std::vector<std::int32_t> small(2), large(3000);
    std::int64_t base = 0;
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < operations; ++i) {
      auto& x = i % 16 == 0 ? large : small;
      x.back() = static_cast<std::int32_t>(i) + world.rank;
      Call call{Operation::all_reduce,
                x.data(),
                x.data(),
                static_cast<std::int64_t>(x.size()),
                DType::i32,
                ReduceOp::sum,
                -1};
      run(engine, std::move(call), deadline);
      ASSERT_EQ(x.back(), static_cast<std::int32_t>(2 * i + 1));
      if (i == operations / 10) base = resident_bytes();
    }
    if (world.rank == 0)
      log::info("{} operations, {:.2f} us each, resident memory +{} KiB", operations,
                seconds_since(start) * 1e6 / static_cast<double>(operations),
                (resident_bytes() - base) >> 10);
    EXPECT_LT(resident_bytes() - base, 1 << 20);
  });
}

TEST(ManyOperations, LeaveMemoryFlatOverTcp) {
  if (fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  const std::int64_t operations = many(8'000, 1'000'000);
  ProcessRanks ranks(2, [&](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(100);
    options.transport = "tcp";
    const auto c = make_communicator(world, store, options);
    std::vector<std::int32_t> small(2), large(10000);
    std::int64_t base = 0;
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < operations; ++i) {
      auto& x = i % 4 == 0 ? large : small;
      x.back() = static_cast<std::int32_t>(i) + world.rank;
      c->all_reduce(x.data(), x.data(), static_cast<std::int64_t>(x.size()), DType::i32,
                    ReduceOp::sum)
          ->wait();
      ASSERT_EQ(x.back(), static_cast<std::int32_t>(2 * i + 1));
      if (i == operations / 2) base = resident_bytes();
    }
    if (world.rank == 0)
      log::info("{} operations, {:.2f} us each, resident memory +{} KiB", operations,
                seconds_since(start) * 1e6 / static_cast<double>(operations),
                (resident_bytes() - base) >> 10);
    // Receive buffers are first touched during 65000 large operations, which is half of what the
    // full run does before it measures.
    EXPECT_LT(resident_bytes() - base, (operations < 100'000 ? 4 : 1) << 20);
  });
  // This is long enough on a busy machine.
  const double patience = 100 + 4e-4 * static_cast<double>(operations);
  for (const auto& outcome : ranks.wait(patience))
    EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

// Two jobs that fail one after the other and use one directory must not mix their dumps.
TEST(FlightDirectory, HasASubdirectoryForEachJob) {
  const testing::TemporaryDirectory directory;
  ASSERT_EQ(::setenv("SHOAL_FLIGHT_DIR", directory.path().c_str(), 1), 0);
  for (int job = 0; job < 2; ++job)
    test::thread_rank_errors(2, [](const World& world, Store& store) {
      const auto communicator = make_communicator(world, store, with_deadline(20));
      float value = 1;
      const std::int64_t count = world.rank == 0 ? 1 : 0;
      communicator->all_reduce(&value, &value, count, DType::f32, ReduceOp::sum)->wait();
    });
  ::unsetenv("SHOAL_FLIGHT_DIR");
  int jobs = 0;
  for (const auto& job : std::filesystem::directory_iterator(directory.path())) {
    ++jobs;
    int dumps = 0;
    for (const auto& file : std::filesystem::directory_iterator(job.path()))
      dumps += file.path().filename().string().starts_with("flight-");
    EXPECT_EQ(dumps, 2) << job.path();
  }
  EXPECT_EQ(jobs, 2);
}

TEST(FlightDirectory, WaitsForNoOtherRank) {
  const testing::TemporaryDirectory directory;
  ASSERT_EQ(::setenv("SHOAL_FLIGHT_DIR", directory.path().c_str(), 1), 0);
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    if (world.rank == 1) (void)make_communicator(world, store, with_deadline(1));
  });
  ::unsetenv("SHOAL_FLIGHT_DIR");
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank"), ::testing::Not(HasSubstr("shoal/job"))));
}

}  // namespace
}  // namespace shoal::collectives
