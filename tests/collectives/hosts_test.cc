// The native backend, made by make_communicator, over libfabric's tcp and over the simulated EFA of
// support/efa_provider. Ranks are processes on one host and on emulated hosts (SHOAL_HOST_NAME,
// World::host).
#include <csignal>

#include "at_best.h"
#include "predictable.h"
#include "support/efa.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using ::testing::HasSubstr;

CommunicatorOptions over(const std::string& transport, double deadline) {
  CommunicatorOptions options;
  options.deadline_seconds = deadline;
  options.transport = transport;
  return options;
}

World on_host(World world, const std::string& hosts) {
  world.host = hosts.substr(static_cast<std::size_t>(world.rank), 1);
  return world;
}

// The transport between hosts, and each rank's host as one letter.
using Place = std::tuple<std::string, std::string>;
class Hosts : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    shoal::test::use_efa_provider();
    // "efa" selects efa-direct if it is offered; here it is not.
    ::setenv("SHOAL_TEST_EFA_FABRIC", std::get<0>(GetParam()) == "efa" ? "efa" : "", 1);
    if (fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  }
};

TEST_P(Hosts, ResultsAreExact) {
  const std::string transport = std::get<0>(GetParam()), hosts = std::get<1>(GetParam());
  ProcessRanks ranks(static_cast<int>(hosts.size()), [&](const World& world, Store& store) {
    const auto c = make_communicator(on_host(world, hosts), store, over(transport, 60));
    auto wrong = test::check_everything(*c, {1, 2055});
    test::Case large;
    large.count = 600003;
    large.memory = test::Memory::symmetric;
    for (const Operation operation :
         {Operation::all_reduce, Operation::all_gather, Operation::reduce_scatter}) {
      large.operation = operation;
      const std::string text = test::check(*c, large);
      if (!text.empty()) wrong.push_back(text);
    }
    if (!wrong.empty()) throw Error(ErrorCode::internal, wrong.front());
  });
  for (const auto& outcome : ranks.wait(100)) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

double seconds_to_name_a_killed_rank(const std::string& transport, const std::string& hosts) {
  const int size = static_cast<int>(hosts.size()), victim = size - 1;
  ProcessRanks ranks(size, [&](const World& world, Store& store) {
    const auto c = make_communicator(on_host(world, hosts), store, over(transport, 60));
    std::vector<float> values(200000, 1.0f);
    const auto sum = [&] {
      c->all_reduce(values.data(), values.data(), 200000, DType::f32, ReduceOp::max)->wait();
    };
    sum();
    ProcessRanks::say_ready(store);
    for (;;) sum();
  });
  EXPECT_TRUE(ranks.wait_until_ready(30, size));
  const auto killed = Clock::now();
  ranks.send_signal(victim, SIGKILL);
  const auto outcomes = ranks.wait(15);
  const double seconds = seconds_since(killed);
  for (int rank = 0; rank < victim; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.error, HasSubstr(hosts == "aa" ? "rank 1 died"
                                                       : fmt::format("rank {} (host {}) died",
                                                                     victim, hosts.back())));
    EXPECT_THAT(outcome.error, HasSubstr("all_reduce of"));
  }
  return seconds;
}

TEST_P(Hosts, AKilledRankIsNamedByEverySurvivorWithinASecond) {
  const std::string transport = std::get<0>(GetParam()), hosts = std::get<1>(GetParam());
  const auto once = [&] { return seconds_to_name_a_killed_rank(transport, hosts); };
  EXPECT_LT(shoal::test::at_best(1, once), 1);
}

INSTANTIATE_TEST_SUITE_P(Emulated, Hosts,
                         ::testing::Combine(::testing::Values("tcp", "efa", "efa-direct"),
                                            ::testing::Values("aa", "abc", "aabb", "aaab")));
INSTANTIATE_TEST_SUITE_P(OverUdp, Hosts,
                         ::testing::Combine(::testing::Values("udp"),
                                            ::testing::Values("aa", "aabb")));

}  // namespace
}  // namespace shoal::collectives
