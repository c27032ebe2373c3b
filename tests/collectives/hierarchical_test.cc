// Ranks on emulated hosts: threads that share memory only with ranks of the same host name, and
// reach the others over the loopback.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "loopback_ranks.h"
#include "predictable.h"
#include "support/calls.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/departure.h"
#include "shoal/collectives/backend/hierarchical/block_exchange.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::with_deadline;
using test::LoopbackRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Converts "aab" to hosts: ranks 0 and 1 on host a, rank 2 on host b.
std::vector<std::string> hosts_of(const std::string& letters) {
  std::vector<std::string> hosts;
  for (const char letter : letters) hosts.emplace_back(1, letter);
  return hosts;
}

TEST(Placement, NumbersNodesByTheirLowestRank) {
  const hierarchical::Placement where(hosts_of("babab"));
  EXPECT_EQ(where.nodes(), 2);
  EXPECT_EQ(where.members(0), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(where.members(1), (std::vector<int>{1, 3}));
  EXPECT_EQ(where.local_rank(4), 2);
  EXPECT_EQ(where.rails(), 2);
  EXPECT_EQ(where.rail(1), (std::vector<int>{2, 3}));
  EXPECT_FALSE(where.contiguous());
  EXPECT_TRUE(hierarchical::Placement(hosts_of("aabbb")).contiguous());
}

// Keyed by sender and receiver: the elements of the whole buffer that a step's messages carry.
using Messages = std::map<std::pair<int, int>, std::vector<std::int64_t>>;

void note(Messages& messages, int from, int to, std::int64_t begin, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) messages[{from, to}].push_back(begin + i);
}

TEST(Blocks, PiecesOfAllDistancesBringEveryElementToEveryHostOnce) {
  for (const std::string letters : {"aabb", "aaabb", "abbb", "aabbcc", "aaaabbbb"})
    for (const int pieces : {1, 2, 3, 8}) {
      const hierarchical::Placement where(hosts_of(letters));
      std::vector<std::int64_t> counts;
      for (int rank = 0; rank < where.size(); ++rank) counts.push_back(rank * 5 % 7);
      const hierarchical::Blocks blocks(where, counts, pieces);
      std::set<int> turns;
      for (int turn = 0; turn < pieces; ++turn) turns.insert(blocks.piece_in_turn(turn));
      EXPECT_EQ(turns.size(), static_cast<std::size_t>(pieces));
      EXPECT_EQ(*turns.begin(), 0);
      EXPECT_EQ(*turns.rbegin(), pieces - 1);

      std::vector<std::vector<int>> arrived(static_cast<std::size_t>(where.nodes()));
      for (auto& of : arrived)
        of.assign(static_cast<std::size_t>(blocks.block(where.nodes() - 1).end), 0);
      for (int distance = 1; distance < where.nodes(); ++distance)
        for (int piece = 0; piece < pieces; ++piece) {
          Messages sent, received;
          for (int rank = 0; rank < where.size(); ++rank) {
            const algorithm::Program program = blocks.gather_step(rank, distance, piece);
            for (const algorithm::Instruction& i : program.instructions) {
              if (i.verb == algorithm::Verb::send) {
                const algorithm::Piece& from = i.sources.front();
                note(sent, rank, i.peer, blocks.part(rank).begin + from.begin, from.count);
                continue;
              }
              note(received, i.peer, rank, i.target.begin, i.target.count);
              auto& at = arrived[static_cast<std::size_t>(where.node_of(rank))];
              for (std::int64_t e = 0; e < i.target.count; ++e)
                ++at[static_cast<std::size_t>(i.target.begin + e)];
            }
          }
          EXPECT_EQ(sent, received) << letters << ", piece " << piece << " of " << pieces;
        }
      for (int node = 0; node < where.nodes(); ++node) {
        const algorithm::Range own = blocks.block(node);
        const auto& at = arrived[static_cast<std::size_t>(node)];
        for (std::size_t e = 0; e < at.size(); ++e) {
          const auto element = static_cast<std::int64_t>(e);
          EXPECT_EQ(at[e], element < own.begin || element >= own.end ? 1 : 0) << letters;
        }
      }
    }
}

class HierarchicalResults : public ::testing::TestWithParam<std::string> {};

TEST_P(HierarchicalResults, AreExact) {
  const auto hosts = hosts_of(GetParam());
  const int size = static_cast<int>(hosts.size());
  const LoopbackRanks loopback(size, 1024);
  const transport::FaultOptions shuffled{5, 0.2, 200, 3};
  std::mutex mutex;
  std::vector<std::string> wrong;
  shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts, with_deadline(60),
                                         size == 5 ? &shuffled : nullptr);
    const auto own = test::check_everything(*c, {0, 1, 129, 2055});
    const std::lock_guard lock(mutex);
    wrong.insert(wrong.end(), own.begin(), own.end());
  });
  EXPECT_THAT(wrong, IsEmpty());
}

TEST_P(HierarchicalResults, AreExactInManySlices) {
  const auto hosts = hosts_of(GetParam());
  const int size = static_cast<int>(hosts.size());
  const LoopbackRanks loopback(size);
  std::mutex mutex;
  std::vector<std::string> wrong;
  shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts, with_deadline(60));
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool in_place : {true, false})
        for (const Operation operation :
             {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter,
              Operation::all_gather_v, Operation::reduce_scatter_v, Operation::broadcast,
              Operation::reduce}) {
          if (operation == Operation::broadcast && !in_place) continue;
          const bool whole = operation == Operation::all_reduce ||
                             operation == Operation::broadcast || operation == Operation::reduce;
          test::Case one;
          one.operation = operation;
          one.root = dtype == DType::f32 ? size - 1 : 1;
          one.dtype = dtype;
          one.op = ReduceOp::avg;
          one.count = whole ? 1200003 : 300001;
          one.in_place = in_place;
          one.memory = in_place ? test::Memory::symmetric : test::Memory::plain;
          const std::string own = test::check(*c, one);
          const std::lock_guard lock(mutex);
          if (!own.empty()) wrong.push_back(own);
        }
  });
  EXPECT_THAT(wrong, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalResults,
                         ::testing::Values("aabb", "aaabb", "abab", "aab", "aabbcc", "aaaabbbb",
                                           "abbb", "aabbccdd"));

TEST(Hierarchical, ResultsAreBitIdenticalOnAllRanksAndInAllRuns) {
  constexpr std::int64_t kCount = 700001;
  const auto hosts = hosts_of("aabb");
  std::vector<std::vector<float>> results;
  std::mutex mutex;
  for (std::uint64_t run = 0; run < 2; ++run) {
    const LoopbackRanks loopback(4);
    const transport::FaultOptions shuffled{run, 0.5, 300, 3};
    shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
      const auto c = loopback.hierarchical(world, store, hosts, with_deadline(30), &shuffled);
      std::mt19937 random(static_cast<unsigned>(world.rank));
      std::normal_distribution<float> normal;
      std::vector<float> values(kCount);
      for (float& value : values) value = normal(random);
      c->all_reduce(values.data(), values.data(), kCount, DType::f32, ReduceOp::sum)->wait();
      const std::lock_guard lock(mutex);
      results.push_back(values);
    });
  }
  for (const auto& result : results)
    ASSERT_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0);
}

// A broadcast's bytes enter each host once, and a reduce's leave it once, for any number of ranks.
TEST(Hierarchical, RootedOperationsCrossTheNetworkOncePerHost) {
  constexpr std::int64_t kCount = 300000;
  for (const bool by_levels : {true, false}) {
    const LoopbackRanks loopback(6);
    std::array<std::atomic<std::int64_t>, 2> crossed{};
    shoal::test::run_thread_ranks(6, [&](const World& world, Store& store) {
      CommunicatorOptions options = with_deadline(30);
      if (!by_levels) options.collectives = "broadcast,reduce:@^hierarchical";
      std::shared_ptr<net::NetEngine> engine;
      const auto c =
          loopback.hierarchical(world, store, hosts_of("aaabbb"), options, nullptr, &engine);
      std::vector<float> values(kCount, static_cast<float>(world.rank));
      const auto bytes_of = [&](auto&& operation) {
        const std::int64_t before = engine->endpoint_statistics().bytes_sent;
        operation();
        return engine->endpoint_statistics().bytes_sent - before;
      };
      crossed[0] += bytes_of([&] { c->broadcast(values.data(), kCount, DType::f32, 4)->wait(); });
      EXPECT_EQ(values[kCount - 1], 4.0f);
      crossed[1] += bytes_of([&] {
        c->reduce(values.data(), values.data(), kCount, DType::f32, ReduceOp::sum, 4)->wait();
      });
      if (world.rank == 4) {
        EXPECT_EQ(values[7], 24.0f);
      }
    });
    // From rank to rank, messages inside a host count too: n - 1 times the data.
    for (const auto& bytes : crossed) EXPECT_EQ(bytes.load(), (by_levels ? 1 : 5) * kCount * 4);
  }
}

TEST(Hierarchical, EmptyOperationsPassTheTurn) {
  const LoopbackRanks loopback(4);
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("aabb"), with_deadline(20));
    std::vector<std::vector<float>> buffers(9, std::vector<float>(100000, 1.0f));
    std::vector<WorkPtr> works;
    for (std::size_t i = 0; i < buffers.size(); i += 3) {
      float* const sum = buffers[i].data();
      float* const sent = buffers[i + 1].data();
      float* const most = buffers[i + 2].data();
      sent[99999] = most[99999] = static_cast<float>(world.rank);
      works.push_back(c->all_reduce(sum, sum, 100000, DType::f32, ReduceOp::sum));
      works.push_back(c->all_reduce(sum, sum, 0, DType::f32, ReduceOp::sum));
      works.push_back(c->broadcast(sent, 0, DType::f32, 3));
      works.push_back(c->broadcast(sent, 100000, DType::f32, 3));
      works.push_back(c->reduce(most, most, 100000, DType::f32, ReduceOp::max, 1));
    }
    for (const auto& work : works) work->wait();
    for (std::size_t i = 0; i < buffers.size(); i += 3) {
      EXPECT_EQ(buffers[i][99999], 4.0f);
      EXPECT_EQ(buffers[i + 1][99999], 3.0f);
      if (world.rank == 1) {
        EXPECT_EQ(buffers[i + 2][99999], 3.0f);
      }
    }
  });
}

// Operations of every kind are in flight at once and ranks are out of step. All hosts must issue
// them on their rails in the same order.
TEST(Hierarchical, MixedOperationsKeepOneOrderOnTheRails) {
  constexpr std::int64_t kPart = 20000;  // large enough to go by levels
  const LoopbackRanks loopback(4);
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("aabb"), with_deadline(30));
    std::mt19937 random(static_cast<unsigned>(world.rank));
    struct Round {
      std::vector<float> scattered = std::vector<float>(4 * kPart, 1.0f);
      std::vector<float> part = std::vector<float>(kPart);
      std::vector<float> gathered = std::vector<float>(4 * kPart);
      std::vector<float> own, sent, sum, most;
    };
    std::vector<Round> rounds(12);
    std::vector<WorkPtr> works;
    const auto dawdle = [&] {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 800));
    };
    for (Round& r : rounds) {
      const auto rank = static_cast<float>(world.rank);
      r.own.assign(kPart, rank);
      r.sent.assign(kPart, rank);
      r.sum.assign(kPart, rank);
      r.most.assign(kPart, rank);
      works.push_back(
          c->reduce_scatter(r.scattered.data(), r.part.data(), kPart, DType::f32, ReduceOp::sum));
      dawdle();
      works.push_back(c->all_gather(r.own.data(), r.gathered.data(), kPart, DType::f32));
      works.push_back(c->broadcast(r.sent.data(), kPart, DType::f32, 2));
      dawdle();
      works.push_back(c->all_reduce(r.sum.data(), r.sum.data(), kPart, DType::f32, ReduceOp::sum));
      works.push_back(c->reduce(r.most.data(), r.most.data(), kPart, DType::f32, ReduceOp::max, 1));
    }
    for (const auto& work : works) work->wait();
    for (const Round& r : rounds) {
      EXPECT_EQ(r.part.back(), 4.0f);
      for (std::size_t peer = 0; peer < 4; ++peer)
        EXPECT_EQ(r.gathered[peer * kPart + 7], static_cast<float>(peer));
      EXPECT_EQ(r.sent.back(), 2.0f);
      EXPECT_EQ(r.sum.back(), 6.0f);
      if (world.rank == 1) {
        EXPECT_EQ(r.most.back(), 3.0f);
      }
    }
  });
}

// Only operations by levels change the counters of the host's groups.
TEST(Hierarchical, TheTableDecidesBetweenLevelsAndRankToRank) {
  const LoopbackRanks loopback(4);
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(30);
    options.collectives = "all_reduce:0-64k:{2}:[4]:@ring";
    const auto c = loopback.hierarchical(world, store, hosts_of("aabb"), options);
    const auto in_host = [&] {
      const CommunicatorStatistics s = c->statistics();
      return s.zero_copy + s.bounced;
    };
    std::vector<float> values(40000, 1.0f);
    c->all_reduce(values.data(), values.data(), 1000, DType::f32, ReduceOp::sum)->wait();
    EXPECT_EQ(values[999], 4.0f);
    EXPECT_EQ(in_host(), 0);
    c->all_reduce(values.data(), values.data(), 40000, DType::f32, ReduceOp::sum)->wait();
    EXPECT_EQ(values[999], 16.0f);
    EXPECT_EQ(values[39999], 4.0f);
    EXPECT_GT(in_host(), 0);
  });
}

TEST(Hierarchical, SixteenBitFloatsAccumulateInSinglePrecisionOverAllLevels) {
  const LoopbackRanks loopback(5);
  shoal::test::run_thread_ranks(5, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("aaabb"), with_deadline(30));
    for (const std::int64_t count : {64, 90000}) {
      std::vector<bfloat16> values(static_cast<std::size_t>(count),
                                   bfloat16(world.rank == 0 ? 256.0f : 1.0f));
      c->all_reduce(values.data(), values.data(), count, DType::bf16, ReduceOp::sum)->wait();
      EXPECT_EQ(static_cast<float>(values[7]), 260.0f) << count;
    }
  });
}

TEST(Hierarchical, FinishesManyOperationsInFlightUnattended) {
  const LoopbackRanks loopback(6, 512);
  shoal::test::run_thread_ranks(6, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("aabbcc"), with_deadline(60));
    std::vector<std::vector<std::int32_t>> buffers;
    for (std::size_t i = 0; i < 60; ++i) buffers.emplace_back(1 + i * 997 % 30000, world.rank);
    std::vector<WorkPtr> works;
    std::int64_t flat = 0;
    for (auto& b : buffers) {
      works.push_back(c->all_reduce(b.data(), b.data(), static_cast<std::int64_t>(b.size()),
                                    DType::i32, ReduceOp::sum));
      if (works.size() % 20 == 0) {
        flat = world.rank;
        c->broadcast(&flat, 1, DType::i64, 3)->wait();
        EXPECT_EQ(flat, 3);
      }
    }
    const auto began = Clock::now();
    while (c->statistics().operations < 63 && seconds_since(began) < 30)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(c->statistics().operations, 63);
    for (std::size_t i = works.size(); i-- > 0;) works[i]->wait();
    for (const auto& b : buffers) ASSERT_EQ(b.back(), 15);
  });
}

// The next operation reduces inside the host while this one uses the rails. Yet no rank may need
// another rank's next call: some ranks wait for each operation before they make the next call,
// others never wait.
TEST(Hierarchical, OverlapsOperationsWithoutNeedingTheNextCall) {
  for (const char* letters : {"aabb", "aaabb"}) {
    const auto hosts = hosts_of(letters);
    const int size = static_cast<int>(hosts.size());
    const LoopbackRanks loopback(size);
    shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
      const auto c = loopback.hierarchical(world, store, hosts, with_deadline(30));
      constexpr std::int64_t kCount = 900'001, kPart = 100'003;
      const auto ranks = static_cast<std::size_t>(size);
      const auto rank = static_cast<std::size_t>(world.rank);
      const int of_ranks = size * (size + 1) / 2;  // 1 + 2 + ... + size
      const auto sum = static_cast<float>(of_ranks);
      for (int round = 0; round < 3; ++round) {
        std::vector<float> first(kCount, static_cast<float>(world.rank + 1)), last = first;
        std::vector<float> whole(kPart * ranks, static_cast<float>(world.rank + 1)), part(kPart);
        std::vector<float> gathered(kPart * ranks);
        std::fill_n(gathered.begin() + static_cast<std::ptrdiff_t>(rank * kPart), kPart,
                    static_cast<float>(world.rank));
        std::vector<WorkPtr> works;
        const auto called = [&](WorkPtr work) {
          if ((world.rank + round) % 2 == 0)
            work->wait();
          else
            works.push_back(std::move(work));
        };
        called(c->all_reduce(first.data(), first.data(), kCount, DType::f32, ReduceOp::sum));
        called(c->reduce_scatter(whole.data(), part.data(), kPart, DType::f32, ReduceOp::sum));
        called(c->all_gather(gathered.data() + rank * kPart, gathered.data(), kPart, DType::f32));
        called(c->all_reduce(last.data(), last.data(), kCount, DType::f32, ReduceOp::max));
        for (const WorkPtr& work : works) work->wait();
        EXPECT_EQ(first, std::vector<float>(kCount, sum));
        EXPECT_EQ(part, std::vector<float>(kPart, sum));
        EXPECT_EQ(last, std::vector<float>(kCount, static_cast<float>(size)));
        for (std::size_t r = 0; r < ranks; ++r) {
          EXPECT_EQ(gathered[r * kPart], static_cast<float>(r));
          EXPECT_EQ(gathered[(r + 1) * kPart - 1], static_cast<float>(r));
        }
      }
    });
  }
}

// Both phases inside a host work on the caller's memory in place, whichever communicator runs them.
TEST(Hierarchical, DoesNotCopySymmetricMemory) {
  const auto hosts = hosts_of("aabb");
  const LoopbackRanks loopback(4);
  shoal::test::run_thread_ranks(4, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts, with_deadline(30));
    constexpr std::int64_t kCount = 600'000;
    Buffer buffer(c->memory_resource(), kCount * sizeof(float), MemoryTag::gradients);
    auto* const values = static_cast<float*>(buffer.data());
    std::fill_n(values, kCount, 1.0F);
    c->all_reduce(values, values, kCount, DType::f32, ReduceOp::sum)->wait();
    EXPECT_EQ(values[kCount - 1], 4.0F);
    EXPECT_EQ(c->statistics().bounced, 0);
    EXPECT_GT(c->statistics().zero_copy, 0);
    c->barrier()->wait();
  });
}

TEST(Hierarchical, ASplitsHierarchyFollowsTheHostsOfItsRanks) {
  const LoopbackRanks loopback(6);
  shoal::test::run_thread_ranks(6, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("aaabbb"), with_deadline(30));
    const auto check = [](Communicator& group, std::int64_t want) {
      std::vector<std::int64_t> ones(5000, 1);
      group.all_reduce(ones.data(), ones.data(), 5000, DType::i64, ReduceOp::sum)->wait();
      EXPECT_EQ(ones.back(), want);
    };
    const auto within = c->split(world.rank / 3, 0), across = c->split(world.rank % 3, 0);
    const auto four = c->split(world.rank % 3 == 2 ? -1 : 0, -world.rank);
    EXPECT_EQ(within->size(), 3);
    EXPECT_EQ(across->size(), 2);
    check(*within, 3);
    check(*across, 2);
    if (four) {
      EXPECT_EQ(four->size(), 4);
      check(*four, 4);
      const auto again = four->split(four->rank() % 2, 0);
      check(*again, 2);
    }
    check(*c, 6);
  });
}

TEST(Hierarchical, AMismatchIsNamedOnEveryRank) {
  const LoopbackRanks loopback(4);
  const auto errors = shoal::test::thread_rank_errors(4, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("aabb"), with_deadline(10));
    std::vector<float> values(5000);
    const std::int64_t count = world.rank == 1 ? 4999 : 5000;
    try {
      c->all_reduce(values.data(), values.data(), count, DType::f32, ReduceOp::sum)->wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      throw;
    }
  });
  for (const auto& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("ranks called different operations"), HasSubstr("4999")));
}

// Differences that the steps inside a host or on a rail cannot show, because the steps are the
// same.
TEST(Hierarchical, AMismatchIsNamedAsItWasCalled) {
  const auto errors_of = [](const auto& call_of_victim, int victim, bool whole_host) {
    const LoopbackRanks loopback(4);
    return shoal::test::thread_rank_errors(4, [&](const World& world, Store& store) {
      const auto c = loopback.hierarchical(world, store, hosts_of("aabb"), with_deadline(10));
      std::vector<float> x(5000);
      if (world.rank == victim || (whole_host && world.rank / 2 == victim / 2))
        call_of_victim(*c, x.data())->wait();
      c->all_reduce(x.data(), x.data(), 5000, DType::f32, ReduceOp::sum)->wait();
    });
  };
  const auto avg = [](Communicator& c, float* x) {
    return c.all_reduce(x, x, 5000, DType::f32, ReduceOp::avg);
  };
  const auto count = [](Communicator& c, float* x) {
    return c.all_reduce(x, x, 4999, DType::f32, ReduceOp::sum);
  };
  const auto barrier = [](Communicator& c, float*) { return c.barrier(); };
  for (const bool whole_host : {false, true}) {
    for (const auto& error : errors_of(avg, 3, whole_host))
      EXPECT_THAT(error, AllOf(HasSubstr("called all_reduce of 5000 f32, avg"),
                               HasSubstr("called all_reduce of 5000 f32, sum")));
    for (const auto& error : errors_of(count, 3, whole_host))
      EXPECT_THAT(error, AllOf(HasSubstr("called all_reduce of 4999 f32, sum"),
                               HasSubstr("called all_reduce of 5000 f32, sum")));
  }
  // Only rank 3, by its number in the job.
  for (const auto& error : errors_of(avg, 3, false))
    EXPECT_THAT(error, HasSubstr("rank 3 called all_reduce of 5000 f32, avg"));
  // One rank's call goes over the hosts and the other's from rank to rank.
  for (const auto& error : errors_of(barrier, 2, false))
    EXPECT_THAT(error, AllOf(HasSubstr("rank 2 called barrier"),
                             HasSubstr("called all_reduce of 5000 f32, sum")));
}

TEST(Hierarchical, AStalledRankIsNamed) {
  for (const std::string hosts : {"aabb", "abbb"}) {
    const LoopbackRanks loopback(4);
    const auto start = Clock::now();
    const auto errors = shoal::test::thread_rank_errors(4, [&](const World& world, Store& store) {
      const auto c = loopback.hierarchical(world, store, hosts_of(hosts), with_deadline(1));
      c->barrier()->wait();
      if (world.rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      std::vector<float> values(5000);
      c->all_reduce(values.data(), values.data(), 5000, DType::f32, ReduceOp::sum)->wait();
    });
    EXPECT_LT(seconds_since(start), 5);
    std::string all;
    for (const auto& error : errors) {
      EXPECT_THAT(error, HasSubstr("all_reduce of 5000 f32, sum")) << hosts;
      all += error + "\n";
    }
    // The first rank to notice reports it; the others may have waited only for its host.
    EXPECT_THAT(all, HasSubstr("did not finish within 1.")) << hosts;
  }
}

// Rank 2 has no rail, so only its host's group reports that it has left. Its memory stays mapped.
TEST(Hierarchical, LeavingEndsTheHostsGroupToo) {
  const LoopbackRanks loopback(3, 1024);
  shoal::test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("abb"), with_deadline(60));
    auto* const memory = static_cast<float*>(
        c->memory_resource().allocate(4096 * sizeof(float), MemoryTag::communication, Stream{}));
    std::fill_n(memory, 4096, 1.0F);
    c->all_reduce(memory, memory, 4096, DType::f32, ReduceOp::sum)->wait();
    if (world.rank == 2) {
      dynamic_cast<Departure&>(*c).leave();
      EXPECT_EQ(memory[4095], 3);
    } else {
      const auto began = Clock::now();
      EXPECT_THAT(shoal::test::error_text([&] {
                    c->all_reduce(memory, memory, 4096, DType::f32, ReduceOp::sum)->wait();
                  }),
                  HasSubstr("rank 2 left the group"));
      EXPECT_LT(seconds_since(began), 10);
    }
    barrier(store, "left", 3, Deadline::in_seconds(60));
    c->memory_resource().deallocate(memory, 4096 * sizeof(float), MemoryTag::communication,
                                    Stream{});
  });
}

TEST(Hierarchical, AbortEndsWaitsOnAllRanks) {
  const LoopbackRanks loopback(4);
  const auto errors = shoal::test::thread_rank_errors(4, [&](const World& world, Store& store) {
    const auto c = loopback.hierarchical(world, store, hosts_of("aabb"), with_deadline(30));
    c->barrier()->wait();
    if (world.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      c->abort("loss is NaN");
    }
    std::vector<float> values(5000);
    c->all_reduce(values.data(), values.data(), 5000, DType::f32, ReduceOp::sum)->wait();
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("loss is NaN"));
}

}  // namespace
}  // namespace shoal::collectives
