// Endpoints over libfabric's tcp and udp providers: ranks as threads and as processes.
#include "shoal/collectives/transport/fabric/fabric.h"

#include <array>
#include <csignal>
#include <numeric>
#include <thread>

#include "fabric_traffic.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using shoal::test::run_thread_ranks;
using shoal::test::thread_rank_errors;
using test::drive;
using test::meet;
using test::run_traffic;
using test::TrafficPlan;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr double kSeconds = 60;

std::unique_ptr<transport::Endpoint> connect(const World& world, Store& store,
                                             const fabric::FabricOptions& options,
                                             double seconds = kSeconds) {
  return fabric::make_fabric_endpoint(options, world.rank, world.size, world.rank, world.size,
                                      store, "fabric", Deadline::in_seconds(seconds));
}

fabric::FabricOptions over(const std::string& provider) {
  fabric::FabricOptions options;
  options.provider = provider;
  return options;
}

// Two rails on one machine: two loopback addresses.
fabric::FabricOptions two_rails(const std::string& provider) {
  fabric::FabricOptions options = over(provider);
  options.interfaces = "127.0.0.1,127.0.0.2";
  options.stripe_bytes = 16 << 10;
  return options;
}

#define SHOAL_PROVIDER_OR_SKIP() \
  if (fabric::fabric_providers().empty()) GTEST_SKIP() << "this build has no libfabric"

struct Case {
  std::string name, provider;
  int ranks = 2;
  bool rails = false;  // two rails
  bool writes = true;
  std::int64_t eager = 8192;
  bool sockets = true;
};
std::string case_name(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

class Traffic : public ::testing::TestWithParam<Case> {
 protected:
  fabric::FabricOptions options() const {
    fabric::FabricOptions chosen =
        GetParam().rails ? two_rails(GetParam().provider) : over(GetParam().provider);
    chosen.remote_writes = GetParam().writes;
    chosen.eager_bytes = GetParam().eager;
    chosen.sockets = GetParam().sockets;
    return chosen;
  }
};

TEST_P(Traffic, DeliversThousandsOfMessagesWhole) {
  SHOAL_PROVIDER_OR_SKIP();
  const std::int64_t eager = GetParam().eager;
  run_thread_ranks(GetParam().ranks, [&](const World& world, Store& store) {
    const auto endpoint = connect(world, store, options());
    EXPECT_EQ(endpoint->eager_bytes(), eager);
    EXPECT_EQ(endpoint->rails(), GetParam().rails ? 2 : 1);
    TrafficPlan plan;
    plan.rounds = 12;
    plan.messages = 250;
    plan.first_sequence = 0xfffffffau;  // wraps around
    plan.sizes = {0, 1, 3, 64, 1000, eager - 1, eager, eager + 1, 3 * eager, 70'001};
    run_traffic(*endpoint, plan, kSeconds);
    const transport::EndpointStatistics statistics = endpoint->statistics();
    EXPECT_GT(statistics.eager_messages, 0);
    EXPECT_GT(statistics.rendezvous_messages, 0);
    if (GetParam().provider != "tcp" || !GetParam().sockets) {
      EXPECT_EQ(statistics.by_sockets, 0);
    }
    meet(*endpoint, store, "leave", kSeconds);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, Traffic,
    ::testing::Values(Case{"Tcp2", "tcp", 2}, Case{"Tcp5", "tcp", 5},
                      Case{"TcpRailsAlone4", "tcp", 4, false, true, 8192, false},
                      Case{"Udp3", "udp", 3}, Case{"TcpTwoRails3", "tcp", 3, true},
                      Case{"UdpTwoRails2", "udp", 2, true},
                      Case{"TcpWithoutWrites3", "tcp", 3, false, false},
                      Case{"TcpSmallEager4", "tcp", 4, false, true, 128}),
    case_name);

TEST(Fabric, ReceiveIdsWrap) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(3, [&](const World& world, Store& store) {
    fabric::FabricOptions options = over("tcp");
    options.first_receive_id = 0xfffffff0u;
    const auto endpoint = connect(world, store, options);
    TrafficPlan plan;
    plan.sizes = {20'000, 9000};
    run_traffic(*endpoint, plan, kSeconds);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

TEST(Fabric, FewCreditsAreEnough) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(3, [&](const World& world, Store& store) {
    fabric::FabricOptions options = two_rails("tcp");
    options.credits = 4;
    options.unmatched = 2;
    options.sockets = false;  // they need no credits
    const auto endpoint = connect(world, store, options);
    TrafficPlan plan;
    plan.messages = 600;
    plan.sizes = {0, 10, 8192, 8193, 100'000};
    run_traffic(*endpoint, plan, kSeconds);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

TEST(Fabric, SmallMessagesUseSocketsOnceConnected) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over("tcp"));
    // The lowest bit says that the sender's previous message went through a socket. Both ranks
    // continue until each has seen this bit in both messages.
    const Deadline deadline = Deadline::in_seconds(kSeconds);
    std::uint32_t value = 0, got = 0;
    for (std::uint32_t sequence = 0; (value & got & 1) == 0 && !deadline.passed(); ++sequence) {
      const transport::OperationKey key{1, sequence};
      transport::Completion completion;
      value = 2 * sequence + (endpoint->statistics().by_sockets > 0 ? 1 : 0);
      endpoint->begin(key, {});
      endpoint->post_receive(1 - world.rank, {key, 0}, &got, 4, completion);
      endpoint->post_send(1 - world.rank, {key, 0}, &value, 4, completion);
      drive(*endpoint, completion, kSeconds);
      endpoint->end(key);
      ASSERT_EQ(got / 2, sequence);
    }
    EXPECT_GT(endpoint->statistics().by_sockets, 0);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

TEST(Fabric, LargeMessagesBothWaysAtOnce) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto endpoint = connect(world, store, two_rails("tcp"));
    constexpr std::size_t kBytes = (std::size_t{64} << 20) + 3;
    std::vector<std::uint8_t> out(kBytes), in(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i)
      out[i] =
          test::expected_byte(static_cast<std::uint32_t>(world.rank), static_cast<std::int64_t>(i));
    transport::Completion completion;
    endpoint->begin({1, 1}, {});
    endpoint->post_receive(1 - world.rank, {{1, 1}, 0}, in.data(), kBytes, completion);
    endpoint->post_send(1 - world.rank, {{1, 1}, 0}, out.data(), kBytes, completion);
    drive(*endpoint, completion, kSeconds);
    endpoint->end({1, 1});
    for (std::size_t i = 0; i < kBytes; ++i)
      ASSERT_EQ(in[i], test::expected_byte(static_cast<std::uint32_t>(1 - world.rank),
                                           static_cast<std::int64_t>(i)))
          << "byte " << i;
    meet(*endpoint, store, "leave", kSeconds);
  });
}

// Many ranks send to one, which answers all of them: more datagrams than udp;ofi_rxd's queue holds,
// if all were in flight at once.
TEST(Fabric, BurstsBetweenOneAndManyOverUdpArriveWhole) {
  SHOAL_PROVIDER_OR_SKIP();
  constexpr int kRanks = 18;
  constexpr std::size_t kBytes = 600'000;  // more than 128 datagrams
  constexpr double kEnough = 20;
  run_thread_ranks(kRanks, [&](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over("udp"), kEnough);
    const auto byte_of = [](int rank, std::size_t i) {
      return test::expected_byte(static_cast<std::uint32_t>(rank), static_cast<std::int64_t>(i));
    };
    std::vector<int> peers{0};
    if (world.rank == 0) {
      peers.resize(kRanks - 1);
      std::iota(peers.begin(), peers.end(), 1);
    }
    std::vector<std::uint8_t> out(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) out[i] = byte_of(world.rank, i);
    std::vector in(peers.size(), std::vector<std::uint8_t>(kBytes));
    transport::Completion completion;
    endpoint->begin({1, 1}, {});
    for (std::size_t p = 0; p < peers.size(); ++p) {
      endpoint->post_receive(peers[p], {{1, 1}, 0}, in[p].data(), kBytes, completion);
      endpoint->post_send(peers[p], {{1, 1}, 0}, out.data(), kBytes, completion);
    }
    drive(*endpoint, completion, kEnough);
    endpoint->end({1, 1});
    for (std::size_t p = 0; p < peers.size(); ++p)
      for (std::size_t i = 0; i < kBytes; ++i)
        ASSERT_EQ(in[p][i], byte_of(peers[p], i)) << "byte " << i << " from rank " << peers[p];
    meet(*endpoint, store, "leave", kEnough);
  });
}

// A sender far ahead of its receiver is blocked, not buffered without limit.
TEST(Fabric, UnmatchedMessagesAreBounded) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(2, [&](const World& world, Store& store) {
    fabric::FabricOptions options = over("tcp");
    options.unmatched = 32;
    const auto endpoint = connect(world, store, options);
    constexpr std::uint32_t kMessages = 1000;
    transport::Completion completion;
    std::vector<std::uint32_t> values(kMessages);
    endpoint->begin({1, 1}, {});
    if (world.rank == 0) {
      for (std::uint32_t i = 0; i < kMessages; ++i) {
        values[i] = i;
        endpoint->post_send(1, {{1, 1}, i}, &values[i], 4, completion);
      }
      for (int i = 0; i < 200; ++i) {
        endpoint->progress();
        endpoint->sleep(100);
      }
      EXPECT_GE(completion.pending, static_cast<int>(kMessages) - 32);
      barrier(store, "ahead", 2, Deadline::in_seconds(kSeconds));
    } else {
      const Deadline ahead = Deadline::in_seconds(0.2);
      while (!ahead.passed())
        if (!endpoint->progress()) endpoint->sleep(100);
      EXPECT_LE(endpoint->statistics().unexpected, 32);
      barrier(store, "ahead", 2, Deadline::in_seconds(kSeconds));
      for (std::uint32_t i = kMessages; i-- > 0;)
        endpoint->post_receive(0, {{1, 1}, i}, &values[i], 4, completion);
    }
    drive(*endpoint, completion, kSeconds);
    for (std::uint32_t i = 0; i < kMessages; ++i) EXPECT_EQ(values[i], i);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

// Each write of a peer takes a completion queue entry, and EFA's queue can overrun. The endpoint
// grants as many writes as it has entries (1024, rail.h), and the rest when earlier ones have
// arrived.
TEST(Fabric, GrantsNoMoreWritesThanACompletionQueueHolds) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(2, [](const World& world, Store& store) {
    constexpr transport::OperationKey kKey{1, 1};
    constexpr std::uint32_t kMessages = 1030;
    fabric::FabricOptions options = over("tcp");
    options.eager_bytes = 64;
    const auto endpoint = connect(world, store, options);
    std::vector<std::array<std::uint8_t, 128>> data(kMessages);
    transport::Completion completion;
    endpoint->begin(kKey, {});
    if (world.rank == 1) {
      for (std::uint32_t i = 0; i < kMessages; ++i)
        endpoint->post_receive(0, {kKey, i}, data[i].data(), 128, completion);
      for (const auto start = Clock::now(); endpoint->sending() && seconds_since(start) < 0.5;)
        endpoint->progress();
      EXPECT_TRUE(endpoint->sending());
      store.set("allowed", "");
    } else {
      while (!store.try_get("allowed")) endpoint->progress();
      for (std::uint32_t i = 0; i < kMessages; ++i) {
        data[i].fill(static_cast<std::uint8_t>(i));
        endpoint->post_send(1, {kKey, i}, data[i].data(), 128, completion);
      }
    }
    drive(*endpoint, completion, kSeconds);
    for (std::uint32_t i = 0; i < kMessages; ++i)
      ASSERT_EQ(data[i][127], static_cast<std::uint8_t>(i));
    meet(*endpoint, store, "leave", kSeconds);
  });
}

TEST(Fabric, AMismatchIsNamedWhicheverSideSeesIt) {
  SHOAL_PROVIDER_OR_SKIP();
  for (const std::int64_t bytes : {std::int64_t{100}, std::int64_t{100'000}}) {
    const auto errors = thread_rank_errors(2, [&](const World& world, Store& store) {
      const auto endpoint = connect(world, store, over("tcp"));
      Signature signature;
      signature.operation = world.rank == 0 ? Operation::all_reduce : Operation::all_gather;
      signature.dtype = DType::f32;
      signature.count = 25;
      std::vector<std::byte> data(static_cast<std::size_t>(bytes)), in(data.size());
      transport::Completion completion;
      endpoint->begin({1, 1}, signature);
      // Both ranks only send, so neither grants a write. A stalled send must still announce its
      // call.
      endpoint->post_send(1 - world.rank, {{1, 1}, 0}, data.data(), bytes, completion);
      endpoint->post_receive(1 - world.rank, {{1, 1}, 99}, in.data(), 1, completion);
      try {
        drive(*endpoint, completion, kSeconds);
      } catch (const Error& problem) {
        EXPECT_EQ(problem.code(), ErrorCode::mismatch);
        EXPECT_EQ(problem.peer(), 1 - world.rank);
        // Send this rank's remaining messages, so that the other rank sees the mismatch too.
        const Deadline others = Deadline::in_seconds(kSeconds);
        for (store.add("seen", 1); store.add("seen", 0) < 2 && !others.passed();) try {
            endpoint->progress();
            endpoint->sleep(1000);
          } catch (const Error& again) {
            EXPECT_EQ(again.code(), ErrorCode::mismatch);
          }
        throw;
      }
    });
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr("all_reduce of 25 f32"), HasSubstr("all_gather of 25 f32"))));
  }
}

// A small message arrives before its receiver's call and has the length that the call expects.
TEST(Fabric, MessagesThatArriveBeforeTheCallAreCompared) {
  SHOAL_PROVIDER_OR_SKIP();
  const auto errors = thread_rank_errors(2, [](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over("tcp"));
    Signature signature;
    signature.operation = world.rank == 0 ? Operation::all_reduce : Operation::all_gather;
    std::array<std::byte, 4> data{};
    transport::Completion completion;
    if (world.rank == 0) {
      endpoint->begin({1, 1}, signature);
      endpoint->post_send(1, {{1, 1}, 0}, data.data(), 4, completion);
      while (!store.try_get("seen")) endpoint->progress();
      return;
    }
    const Deadline deadline = Deadline::in_seconds(kSeconds);
    while (endpoint->statistics().unexpected == 0 && !deadline.passed()) endpoint->progress();
    store.set("seen", "");
    endpoint->begin({1, 1}, signature);
    endpoint->post_receive(0, {{1, 1}, 0}, data.data(), 4, completion);
    drive(*endpoint, completion, 1);
    endpoint->progress();
  });
  EXPECT_THAT(errors.at(1),
              AllOf(HasSubstr("rank 1 called all_gather"), HasSubstr("rank 0 called all_reduce")));
}

// A stalled sender announces its call, and may be served before the announcement is read. Once the
// operation has ended, the announcement must not count for the key's next use.
TEST(Fabric, ALateAnnouncementIsNotAMismatch) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(2, [](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over("tcp"));
    Signature first, second;
    first.operation = Operation::all_reduce;
    second.operation = Operation::all_gather;
    std::vector<std::byte> data(100'000);
    transport::Completion completion;
    const auto until = [&](auto&& over) {
      const Deadline deadline = Deadline::in_seconds(kSeconds);
      while (!over()) {
        ASSERT_FALSE(deadline.passed());
        endpoint->sleep(1000);
      }
    };
    if (world.rank == 1) {
      endpoint->begin({1, 1}, first);
      endpoint->post_send(0, {{1, 1}, 0}, data.data(), std::ssize(data), completion);
      until([&] { return (void)endpoint->progress(), store.add("read", 0) > 0; });
    } else {
      endpoint->begin({1, 1}, first);
      endpoint->end({1, 1});
      for (std::uint32_t other = 0; other < 300; ++other) {
        endpoint->begin({2, other}, first);
        endpoint->end({2, other});
      }
      until([&] { return endpoint->progress(); });  // the announcement
      store.add("read", 1);
      endpoint->begin({1, 1}, second);
      EXPECT_NO_THROW(endpoint->progress());
    }
    endpoint->abandon();
  });
}

// An announcement that arrives too early is not kept, so it is repeated.
TEST(Fabric, ARankThatLaterCallsAnotherOperationIsNamed) {
  SHOAL_PROVIDER_OR_SKIP();
  const auto errors = thread_rank_errors(2, [](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over("tcp"));
    Signature signature;
    signature.operation = world.rank == 0 ? Operation::all_reduce : Operation::all_gather;
    std::vector<std::byte> data(100'000);
    transport::Completion completion, never{1};
    const auto drive_until = [&](auto&& over) {
      const Deadline deadline = Deadline::in_seconds(kSeconds);
      while (!over() && !deadline.passed())
        if (!endpoint->progress()) endpoint->sleep(1000);
    };
    if (world.rank == 1) {
      endpoint->begin({1, 1}, signature);
      endpoint->post_send(0, {{1, 1}, 0}, data.data(), std::ssize(data), completion);
      drive_until([&] { return store.add("seen", 0) > 0; });
      endpoint->abandon();
      return;
    }
    while (!endpoint->progress()) endpoint->sleep(1000);  // its first announcement
    endpoint->begin({1, 1}, signature);
    try {
      drive(*endpoint, never, kSeconds);
    } catch (...) {
      store.add("seen", 1);
      throw;
    }
  });
  EXPECT_THAT(errors.at(0), AllOf(HasSubstr("all_reduce"), HasSubstr("all_gather")));
  EXPECT_EQ(errors.at(1), "");
}

TEST(Fabric, LengthsThatDisagreeAreNamed) {
  SHOAL_PROVIDER_OR_SKIP();
  for (const auto& [sent, received] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {100, 104}, {100, 90'000}, {90'000, 80'000}}) {
    std::atomic<int> noticed{0};
    thread_rank_errors(2, [&](const World& world, Store& store) {
      const auto endpoint = connect(world, store, over("tcp"));
      std::vector<std::byte> data(90'000);
      transport::Completion completion;
      endpoint->begin({1, 1}, {});
      if (world.rank == 0)
        endpoint->post_send(1, {{1, 1}, 0}, data.data(), sent, completion);
      else
        endpoint->post_receive(0, {{1, 1}, 0}, data.data(), received, completion);
      const Deadline deadline = Deadline::in_seconds(kSeconds);
      while (noticed == 0 && !deadline.passed()) try {
          endpoint->progress();
          endpoint->sleep(1000);
        } catch (const Error& problem) {
          EXPECT_EQ(problem.code(), ErrorCode::mismatch);
          EXPECT_THAT(problem.what(),
                      AllOf(HasSubstr(std::to_string(sent)), HasSubstr(std::to_string(received))));
          ++noticed;
        }
      barrier(store, "noticed", 2, Deadline::in_seconds(kSeconds));
    });
    EXPECT_GE(noticed, 1) << sent << " sent, " << received << " expected";
  }
}

class KilledPeer : public ::testing::TestWithParam<std::string> {};

TEST_P(KilledPeer, NeverHangsItsPeers) {
  SHOAL_PROVIDER_OR_SKIP();
  const std::string provider = GetParam();
  ProcessRanks ranks(2, [&](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over(provider));
    std::vector<std::byte> data(1 << 20), in(1 << 20);
    ProcessRanks::say_ready(store);
    const double seconds = 3;
    for (std::uint32_t sequence = 0;; ++sequence) {
      const transport::OperationKey key{1, sequence};
      transport::Completion completion;
      endpoint->begin(key, {});
      endpoint->post_receive(1 - world.rank, {key, 0}, in.data(), 1 << 20, completion);
      endpoint->post_send(1 - world.rank, {key, 0}, data.data(), 1 << 20, completion);
      drive(*endpoint, completion, seconds);
      endpoint->end(key);
    }
  });
  ASSERT_TRUE(ranks.wait_until_ready(20, 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ranks.send_signal(1, SIGKILL);
  const auto outcomes = ranks.wait(15);
  EXPECT_FALSE(outcomes[0].running);
  EXPECT_FALSE(outcomes[0].error.empty());
}

INSTANTIATE_TEST_SUITE_P(All, KilledPeer, ::testing::Values("tcp", "udp"),
                         [](const auto& named) { return named.param; });

// Closing ofi_rxm's endpoint at this moment used to end the process.
TEST(Fabric, LeavingDuringAPeersWriteEndsOnlyTheEndpoint) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(2, [](const World& world, Store& store) {
    auto endpoint = connect(world, store, over("tcp"));
    constexpr std::size_t kBytes = std::size_t{64} << 20;
    std::vector<std::uint8_t> data(kBytes, world.rank == 0 ? 1 : 0);
    transport::Completion completion;
    endpoint->begin({1, 1}, {});
    const Deadline deadline = Deadline::in_seconds(kSeconds);
    if (world.rank == 0) {
      endpoint->post_send(1, {{1, 1}, 0}, data.data(), kBytes, completion);
      while (!store.try_get("left") && !deadline.passed()) endpoint->progress();
    } else {
      endpoint->post_receive(0, {{1, 1}, 0}, data.data(), kBytes, completion);
      while (data[0] == 0 && !deadline.passed()) endpoint->progress();
      EXPECT_EQ(completion.pending, 1);
      endpoint->abandon();
      endpoint.reset();
      store.set("left", "1");
      return;
    }
    endpoint->abandon();
  });
}

// The last message, large or small, of a rank that leaves at once still arrives.
TEST(Fabric, TheLastMessageArrives) {
  SHOAL_PROVIDER_OR_SKIP();
  for (const char* provider : {"tcp", "udp"}) {
    ProcessRanks ranks(2, [&](const World& world, Store& store) {
      auto endpoint = connect(world, store, over(provider));
      std::vector<std::uint8_t> data(5000, 42);
      transport::Completion completion;
      endpoint->begin({1, 1}, {});
      for (std::uint32_t i = 0; i < 20; ++i)
        if (world.rank == 0) endpoint->post_send(1, {{1, 1}, i}, data.data(), 5000, completion);
      if (world.rank == 0) {
        drive(*endpoint, completion, kSeconds);
        endpoint.reset();
        barrier(store, "gone", 2, Deadline::in_seconds(kSeconds));
        return;
      }
      // The receiver must poll to acknowledge reliable datagrams.
      const Deadline polling = Deadline::in_seconds(kSeconds);
      while (endpoint->statistics().unexpected < 20 && !polling.passed())
        if (!endpoint->progress()) endpoint->sleep(100);
      barrier(store, "gone", 2, Deadline::in_seconds(kSeconds));
      for (std::uint32_t i = 0; i < 20; ++i) {
        std::vector<std::uint8_t> in(5000);
        transport::Completion received;
        endpoint->post_receive(0, {{1, 1}, i}, in.data(), 5000, received);
        drive(*endpoint, received, kSeconds);
        EXPECT_EQ(in, data);
      }
    });
    for (const auto& outcome : ranks.wait(2 * kSeconds)) EXPECT_EQ(outcome.error, "") << provider;
  }
}

TEST(Fabric, RegistrationsAreCached) {
  SHOAL_PROVIDER_OR_SKIP();
  run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over("tcp"));
    std::vector<std::byte> buffer(1 << 20);
    const auto region = endpoint->register_memory(buffer.data(), 1 << 20);
    for (std::uint32_t sequence = 0; sequence < 20; ++sequence) {
      const transport::OperationKey key{1, sequence};
      transport::Completion completion;
      endpoint->begin(key, {});
      const std::ptrdiff_t offset = 1000 * static_cast<std::ptrdiff_t>(sequence);
      if (world.rank == 0)
        endpoint->post_send(1, {key, 0}, buffer.data() + offset, 50'000, completion);
      else
        endpoint->post_receive(0, {key, 0}, buffer.data() + offset, 50'000, completion);
      drive(*endpoint, completion, kSeconds);
      endpoint->end(key);
    }
    EXPECT_EQ(endpoint->statistics().registrations, 1);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

TEST(Fabric, UnknownProviderListsTheAvailableOnes) {
  SHOAL_PROVIDER_OR_SKIP();
  const auto store = make_hash_store();
  try {
    fabric::make_fabric_endpoint(over("warp"), 0, 1, 0, 1, *store, "x", Deadline::in_seconds(1));
    FAIL();
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::unavailable);
    EXPECT_THAT(problem.what(), AllOf(HasSubstr("warp"), HasSubstr("tcp;ofi_rxm")));
  }
}

TEST(Fabric, BuildsWithoutLibfabricNameTheFlag) {
  if (!fabric::fabric_providers().empty()) GTEST_SKIP() << "this build has libfabric";
  const auto store = make_hash_store();
  try {
    fabric::make_fabric_endpoint({}, 0, 1, 0, 1, *store, "x", Deadline::in_seconds(1));
    FAIL();
  } catch (const Error& problem) {
    EXPECT_THAT(problem.what(), HasSubstr("SHOAL_LIBFABRIC"));
  }
}

}  // namespace
}  // namespace shoal::collectives
