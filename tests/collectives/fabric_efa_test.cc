// Endpoints over the simulated EFA of support/efa_provider: no ordering, small inject, registration
// at both ends, queues that overrun, writes that consume receives. The name "efa" means efa-direct
// if libfabric has it (it lists that first), else the fabric efa.
#include <cstdlib>
#include <fstream>
#include <thread>

#include "fabric_traffic.h"
#include "support/efa.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using shoal::test::run_thread_ranks;
using shoal::test::use_efa_provider;
using test::drive;
using test::expected_byte;
using test::meet;
using test::run_traffic;
using test::TrafficPlan;
using ::testing::StartsWith;

constexpr double kSeconds = 60;

fabric::FabricOptions over(const std::string& provider) {
  fabric::FabricOptions options;
  options.provider = provider;
  options.stripe_bytes = 16 << 10;
  return options;
}

std::unique_ptr<transport::Endpoint> connect(const World& world, Store& store,
                                             const fabric::FabricOptions& options) {
  return fabric::make_fabric_endpoint(options, world.rank, world.size, world.rank, world.size,
                                      store, "fabric", Deadline::in_seconds(kSeconds));
}

TrafficPlan all_sizes(std::int64_t eager) {
  TrafficPlan plan;
  plan.rounds = 6;
  plan.messages = 200;
  plan.first_sequence = 0xfffffffau;  // wraps around
  plan.sizes = {0, 1, 3, 31, 32, 33, 1000, eager - 1, eager, eager + 1, 3 * eager, 70'001};
  return plan;
}

struct Case {
  std::string name;
  const char* fabric = "efa";  // the only fabric offered; empty: both
  int ranks = 2;
  const char* cards = "lo";
  int rails = 1;  // for each rank
  bool writes = true;
  const char* delay_us = "0";
  const char* loss = "0";
};

class FabricOverEfa : public ::testing::TestWithParam<Case> {
 protected:
  FabricOverEfa() {
    use_efa_provider(GetParam().cards);
    ::setenv("SHOAL_TEST_EFA_FABRIC", GetParam().fabric, 1);
    ::setenv("SHOAL_TEST_EFA_DELAY_US", GetParam().delay_us, 1);
    ::setenv("SHOAL_TEST_EFA_LOSS", GetParam().loss, 1);
  }
  ~FabricOverEfa() override {
    ::unsetenv("SHOAL_TEST_EFA_FABRIC");
    ::unsetenv("SHOAL_TEST_EFA_DELAY_US");
    ::unsetenv("SHOAL_TEST_EFA_LOSS");
  }
};

TEST_P(FabricOverEfa, ThousandsOfMessagesArriveWhole) {
  run_thread_ranks(GetParam().ranks, [&](const World& world, Store& store) {
    fabric::FabricOptions options = over("efa");
    options.remote_writes = GetParam().writes;
    const auto endpoint = connect(world, store, options);
    EXPECT_THAT(endpoint->name(), StartsWith("efa over rdmap"));
    EXPECT_EQ(endpoint->rails(), GetParam().rails);
    run_traffic(*endpoint, all_sizes(endpoint->eager_bytes()), kSeconds);
    const transport::EndpointStatistics statistics = endpoint->statistics();
    EXPECT_GT(statistics.eager_messages, 0);
    EXPECT_GT(statistics.rendezvous_messages, 0);
    EXPECT_TRUE(!GetParam().writes || statistics.registrations > 0);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, FabricOverEfa,
    ::testing::Values(Case{"Efa2", "efa", 2}, Case{"Efa5", "efa", 5},
                      Case{"Direct3", "efa-direct", 3}, Case{"First2", "", 2},
                      Case{"FourRails2", "efa", 2, "lo,lo,lo,lo", 2},
                      Case{"FourRailsDirect2", "efa-direct", 2, "lo,lo,lo,lo", 2},
                      Case{"SharedRails3", "efa-direct", 3, "lo,lo"},
                      Case{"WithoutWrites3", "efa", 3, "lo", 1, false},
                      Case{"Delayed3", "efa", 3, "lo,lo", 1, true, "1000"},
                      Case{"DelayedDirect2", "efa-direct", 2, "lo,lo", 1, true, "1000"},
                      Case{"Lossy2", "efa", 2, "lo", 1, true, "200", "30"},
                      Case{"LossyDirect2", "efa-direct", 2, "lo", 1, true, "200", "30"}),
    [](const auto& one) { return one.param.name; });

// With efa-direct a message is one packet, however large a write may be.
TEST(FabricOverEfa, EagerMessagesFitAPacket) {
  use_efa_provider();
  run_thread_ranks(2, [&](const World& world, Store& store) {
    fabric::FabricOptions options = over("efa-direct");
    options.eager_bytes = 64 << 10;
    const auto endpoint = connect(world, store, options);
    EXPECT_LT(endpoint->eager_bytes(), 8760);
    EXPECT_GT(endpoint->eager_bytes(), 8192);
    run_traffic(*endpoint, all_sizes(endpoint->eager_bytes()), kSeconds);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

// Host memory registered as device memory. Messages in it use rendezvous with descriptors, even
// short ones.
TEST(FabricOverEfa, MessagesOfDeviceMemoryAreAlwaysWritten) {
  for (const char* fabric : {"efa", "efa-direct"}) {
    use_efa_provider("lo,lo");
    ::setenv("SHOAL_TEST_EFA_FABRIC", fabric, 1);
    ::setenv("SHOAL_TEST_EFA_HMEM", "p2p", 1);
    run_thread_ranks(2, [&](const World& world, Store& store) {
      fabric::FabricOptions options = over("efa");
      options.cuda_device = 0;
      const auto endpoint = connect(world, store, options);
      ASSERT_EQ(endpoint->device_memory_problem(), "");
      std::vector<std::uint8_t> memory(400'000, static_cast<std::uint8_t>(1 + world.rank));
      auto region =
          endpoint->register_device_memory(memory.data(), static_cast<std::int64_t>(memory.size()));
      const std::int64_t sizes[] = {0, 1, 1000, endpoint->eager_bytes(), 150'000};
      std::uint32_t number = 0;
      for (const std::int64_t bytes : sizes) {
        const transport::OperationKey key{1, number++};
        const transport::MessageTag tag{key, 0};
        endpoint->begin(key, {});
        transport::Completion done;
        endpoint->post_receive(1 - world.rank, tag, memory.data() + 200'000, bytes, done);
        endpoint->post_send(1 - world.rank, tag, memory.data(), bytes, done);
        drive(*endpoint, done, kSeconds);
        endpoint->end(key);
        for (std::int64_t i = 0; i < bytes; ++i)
          ASSERT_EQ(memory[static_cast<std::size_t>(200'000 + i)], 2 - world.rank) << bytes;
      }
      EXPECT_EQ(endpoint->statistics().eager_messages, 1) << "only the empty message";
      EXPECT_EQ(endpoint->statistics().rendezvous_messages, 4);
      EXPECT_EQ(endpoint->statistics().registrations, 1);
      meet(*endpoint, store, "all", kSeconds);
      // After the registration ends it is ordinary host memory.
      region.reset();
      transport::Completion done;
      endpoint->begin({1, 99}, {});
      endpoint->post_receive(1 - world.rank, {{1, 99}, 0}, memory.data() + 200'000, 1000, done);
      endpoint->post_send(1 - world.rank, {{1, 99}, 0}, memory.data(), 1000, done);
      drive(*endpoint, done, kSeconds);
      EXPECT_EQ(endpoint->statistics().eager_messages, 2);
      meet(*endpoint, store, "leave", kSeconds);
    });
    ::unsetenv("SHOAL_TEST_EFA_FABRIC");
    ::unsetenv("SHOAL_TEST_EFA_HMEM");
  }
}

// No code here can copy into device memory.
TEST(FabricOverEfa, AnEagerMessageIntoDeviceMemoryIsRefused) {
  use_efa_provider();
  ::setenv("SHOAL_TEST_EFA_HMEM", "p2p", 1);
  const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    fabric::FabricOptions options = over("efa");
    options.cuda_device = 0;
    const auto endpoint = connect(world, store, options);
    std::vector<std::uint8_t> memory(1000);
    std::unique_ptr<transport::MemoryRegion> region;
    if (world.rank == 1) region = endpoint->register_device_memory(memory.data(), 1000);
    endpoint->begin({1, 1}, {});
    transport::Completion done;
    if (world.rank == 0)
      endpoint->post_send(1, {{1, 1}, 0}, memory.data(), 1000, done);
    else
      endpoint->post_receive(0, {{1, 1}, 0}, memory.data(), 1000, done);
    drive(*endpoint, done, kSeconds);
    meet(*endpoint, store, "leave", 0.5);
  });
  ::unsetenv("SHOAL_TEST_EFA_HMEM");
  EXPECT_THAT(errors[1], ::testing::HasSubstr("1000 bytes from host memory of rank 0"));
}

TEST(FabricOverEfa, ExplainsWhyDeviceMemoryIsOutOfReach) {
  use_efa_provider();
  const auto why = [](const char* hmem, int device, bool writes = true) {
    ::setenv("SHOAL_TEST_EFA_HMEM", hmem, 1);
    std::string problem;
    run_thread_ranks(2, [&](const World& world, Store& store) {
      fabric::FabricOptions options = over("efa");
      options.cuda_device = device;
      options.remote_writes = writes;
      const auto endpoint = connect(world, store, options);
      std::vector<std::uint8_t> memory(100);
      if (world.rank == 0) {
        problem = endpoint->device_memory_problem();
        EXPECT_THROW(endpoint->register_device_memory(memory.data(), 100), Error);
      }
      run_traffic(*endpoint, all_sizes(endpoint->eager_bytes()), kSeconds);  // host memory works
      meet(*endpoint, store, "leave", kSeconds);
    });
    ::unsetenv("SHOAL_TEST_EFA_HMEM");
    return problem;
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(why("p2p", -1), HasSubstr("no device was asked for"));
  EXPECT_THAT(why("", 0), HasSubstr("efa offers no FI_HMEM"));
  EXPECT_THAT(why("copies", 0), HasSubstr("cannot let its card reach device memory "
                                          "(FI_OPT_FI_HMEM_P2P: Operation not supported)"));
  EXPECT_THAT(why("p2p", 0, false), HasSubstr("no remote writes between ranks 0 and 1"));
}

TEST(FabricOverEfa, FewCreditsAreEnough) {
  use_efa_provider("lo,lo");
  run_thread_ranks(3, [&](const World& world, Store& store) {
    fabric::FabricOptions options = over("efa");
    options.credits = 4;
    options.unmatched = 2;
    const auto endpoint = connect(world, store, options);
    run_traffic(*endpoint, all_sizes(endpoint->eager_bytes()), kSeconds);
    meet(*endpoint, store, "leave", kSeconds);
  });
}

// A cached registration for sending does not allow a peer's writes.
TEST(FabricOverEfa, ABufferThatWasSentMayBeReceivedInto) {
  for (const char* fabric : {"efa", "efa-direct"}) {
    use_efa_provider();
    run_thread_ranks(2, [&](const World& world, Store& store) {
      fabric::FabricOptions options = over(fabric);
      options.idle_registrations = 16;
      const auto endpoint = connect(world, store, options);
      std::vector<std::uint8_t> first(100'000, static_cast<std::uint8_t>(1 + world.rank)),
          second(100'000);
      const int peer = 1 - world.rank;
      for (std::uint32_t round = 0; round < 2; ++round) {
        auto& from = round == 0 ? first : second;
        auto& to = round == 0 ? second : first;
        transport::Completion completion;
        endpoint->begin({1, round}, {});
        endpoint->post_receive(peer, {{1, round}, 0}, to.data(), 100'000, completion);
        endpoint->post_send(peer, {{1, round}, 0}, from.data(), 100'000, completion);
        drive(*endpoint, completion, kSeconds);
        endpoint->end({1, round});
      }
      EXPECT_EQ(second.back(), 2 - world.rank);  // the peer's value, then sent back
      EXPECT_EQ(first.back(), 1 + world.rank);
      meet(*endpoint, store, "leave", kSeconds);
    });
  }
}

TEST(FabricOverEfa, LargeMessagesBothWaysBetweenProcesses) {
  use_efa_provider("lo,lo");
  ProcessRanks ranks(2, [](const World& world, Store& store) {
    const auto endpoint = connect(world, store, over("efa"));
    constexpr std::size_t kBytes = (std::size_t{8} << 20) + 3;
    std::vector<std::uint8_t> out(kBytes), in(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i)
      out[i] = expected_byte(static_cast<std::uint32_t>(world.rank), static_cast<std::int64_t>(i));
    transport::Completion completion;
    endpoint->begin({1, 1}, {});
    endpoint->post_receive(1 - world.rank, {{1, 1}, 0}, in.data(), kBytes, completion);
    endpoint->post_send(1 - world.rank, {{1, 1}, 0}, out.data(), kBytes, completion);
    drive(*endpoint, completion, kSeconds);
    endpoint->end({1, 1});
    for (std::size_t i = 0; i < kBytes; ++i)
      if (in[i] !=
          expected_byte(static_cast<std::uint32_t>(1 - world.rank), static_cast<std::int64_t>(i)))
        throw_error(ErrorCode::corrupt_data, "byte {} is wrong", i);
    meet(*endpoint, store, "leave", kSeconds);
  });
  for (const auto& outcome : ranks.wait(2 * kSeconds)) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.exit_status, 0);
  }
}

// After a death on EFA no operation completes, with or without error. The owner's deadline must end
// it.
TEST(FabricOverEfa, APeerThatFallsSilentCompletesNothing) {
  const shoal::testing::TemporaryDirectory directory;
  const std::string file = directory / "deaf";
  use_efa_provider();
  ::setenv("SHOAL_TEST_EFA_DEAF", file.c_str(), 1);
  ProcessRanks ranks(2, [&](const World& world, Store& store) {
    if (world.rank == 0) ::unsetenv("SHOAL_TEST_EFA_DEAF");
    const auto endpoint = connect(world, store, over("efa"));
    std::uint32_t out = 7, in = 0;
    for (const bool silent : {false, true}) {
      const transport::OperationKey key{1, silent ? 2u : 1u};
      transport::Completion completion;
      endpoint->begin(key, {});
      endpoint->post_receive(1 - world.rank, {key, 0}, &in, sizeof in, completion);
      endpoint->post_send(1 - world.rank, {key, 0}, &out, sizeof out, completion);
      if (!silent) {
        drive(*endpoint, completion, kSeconds);
        endpoint->end(key);
        meet(*endpoint, store, "heard", kSeconds);
        if (world.rank == 1) std::ofstream(file) << "";
        barrier(store, "silence", 2, Deadline::in_seconds(kSeconds));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      try {
        drive(*endpoint, completion, 1);
      } catch (const Error& problem) {
        if (problem.code() == ErrorCode::timeout) return;
        throw;
      }
      throw_error(ErrorCode::internal, "rank {} heard a peer that is silent", world.rank);
    }
  });
  ::unsetenv("SHOAL_TEST_EFA_DEAF");
  for (const auto& outcome : ranks.wait(2 * kSeconds)) EXPECT_EQ(outcome.error, "");
}

}  // namespace
}  // namespace shoal::collectives
