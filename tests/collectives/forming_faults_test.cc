// Ranks that die at a chosen step while their Communicator forms.
#include <algorithm>
#include <csignal>

#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/forwarding_store.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Ends its process before it sets a key that contains `step`.
class DeadlyStore final : public ForwardingStore {
 public:
  DeadlyStore(Store& store, std::string step) : ForwardingStore(store), step_(std::move(step)) {}
  void set(std::string_view key, std::string_view value) override {
    if (key.find(step_) != std::string_view::npos) std::raise(SIGKILL);
    ForwardingStore::set(key, value);
  }

 private:
  std::string step_;
};

struct Death {
  std::string name, step;
  int victim = 0;
  double deadline = 60;  // seconds
  std::string said;
};
void PrintTo(const Death& death, std::ostream* out) { *out << death.name; }

class FormingFaults : public ::testing::TestWithParam<Death> {};

TEST_P(FormingFaults, NameTheRankThatDied) {
  if (fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  const Death& death = GetParam();
  ProcessRanks ranks(3, [&](World world, Store& store) {
    world.host = world.rank == 2 ? "b" : "a";
    CommunicatorOptions options;
    options.transport = "tcp";
    options.deadline_seconds = death.deadline;
    DeadlyStore deadly(store, death.step);
    (void)make_communicator(world, world.rank == death.victim ? deadly : store, options);
  });
  const auto outcomes = ranks.wait(30);
  for (int rank = 0; rank < 3; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    if (rank == death.victim) {
      EXPECT_EQ(outcome.signal, SIGKILL);
      continue;
    }
    EXPECT_EQ(outcome.exit_status, 1) << rank;
    EXPECT_THAT(outcome.error, AllOf(HasSubstr(death.said), HasSubstr("make_communicator")));
  }
}

// Before the control links exist, a dead rank only looks late. Afterwards its death is known at
// once.
INSTANTIATE_TEST_SUITE_P(
    Steps, FormingFaults,
    ::testing::Values(
        Death{"BeforeControlLinks", "/control/came", 2, 2.5, "rank(s) 2 did not join the group"},
        Death{"BetweenTheLinks", "/control/hub", 0, 2.5, "rank(s) 0 did not join the group"},
        Death{"BeforeTheEndpoint", "/fabric/survey", 2, 60, "rank 2 (host b) died"},
        Death{"InTheEndpoint", "/fabric/opened", 1, 60, "rank 1 (host a) died"},
        Death{"AfterTheEndpoint", "/fabric/ready", 0, 60, "rank 0 (host a) died"}),
    [](const auto& death) { return death.param.name; });

}  // namespace
}  // namespace shoal::collectives
