// Ranks that exchange libfabric addresses, and some that do not.
#include <csignal>

#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/forwarding_store.h"

namespace shoal::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

extern "C" void on_a_signal(int) {}

// Debian's libfabric brings a library that replaces handlers when it is loaded. ctest runs each
// test in a process of its own, so libfabric is loaded here.
TEST(FabricLibrary, KeepsTheHandlersOfSignals) {
  for (const int number : {SIGTERM, SIGSEGV}) std::signal(number, on_a_signal);
  std::signal(SIGINT, SIG_IGN);
  if (fabric::fabric_providers().empty()) GTEST_SKIP() << "this build has no libfabric";
  for (const int number : {SIGTERM, SIGSEGV})
    EXPECT_EQ(std::signal(number, SIG_DFL), on_a_signal) << number;
  EXPECT_EQ(std::signal(SIGINT, SIG_DFL), SIG_IGN);
  EXPECT_EQ(std::signal(SIGABRT, SIG_DFL), SIG_DFL);
}

class FabricJoining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fabric::fabric_providers().empty()) GTEST_SKIP() << "this build has no libfabric";
  }
};

fabric::FabricOptions over(const std::string& provider) {
  fabric::FabricOptions options;
  options.provider = provider;
  return options;
}

TEST_F(FabricJoining, MissingRanksAreNamed) {
  const auto store = make_hash_store();
  try {
    fabric::make_fabric_endpoint(over("tcp"), 0, 3, 0, 3, *store, "x", Deadline::in_seconds(0.1));
    FAIL();
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::timeout);
    EXPECT_THAT(problem.what(), HasSubstr("rank(s) 1, 2 did not join"));
  }
}

// Rank 1's card arrives after the wait for it has timed out, and before missing ranks are listed.
class LateCard final : public ForwardingStore {
 public:
  LateCard(Store& store, std::string card) : ForwardingStore(store), card_(std::move(card)) {}
  std::string get(std::string_view key, Deadline deadline) override {
    try {
      return ForwardingStore::get(key, deadline);
    } catch (const Error&) {
      if (key.ends_with("/1")) set(key, card_);
      throw;
    }
  }

 private:
  const std::string card_;
};

TEST_F(FabricJoining, ALateRankIsNamedThoughItCameMeanwhile) {
  const auto error_of = [](int size, const std::string& card) {
    const auto store = make_hash_store();
    LateCard late(*store, card);
    try {
      fabric::make_fabric_endpoint(over("tcp"), 0, size, 0, size, late, "x",
                                   Deadline::in_seconds(0.1));
    } catch (const Error& problem) {
      return problem;
    }
    return Error(ErrorCode::internal, "none");
  };
  const Error alone = error_of(2, "{}"), first = error_of(3, "{}");
  EXPECT_EQ(alone.code(), ErrorCode::timeout);
  EXPECT_EQ(alone.peer(), 1);
  EXPECT_THAT(alone.what(), HasSubstr("fabric: rank(s) 1 did not join in time"));
  EXPECT_THAT(first.what(), HasSubstr("fabric: rank(s) 1, 2 did not join in time"));
  const Error failed = error_of(3, R"({"failed": "no card"})");
  EXPECT_EQ(failed.code(), ErrorCode::peer_lost);
  EXPECT_THAT(failed.what(), HasSubstr("rank 1 failed (its last words: no card)"));
  const Error torn = error_of(3, "{");
  EXPECT_EQ(torn.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(torn.what(), HasSubstr("the card of rank 1 is unreadable"));
}

TEST_F(FabricJoining, ARankThatCannotJoinReportsWhyToTheOthers) {
  const auto start = Clock::now();
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto options = over(world.rank == 1 ? "warp" : "tcp");
    fabric::make_fabric_endpoint(options, world.rank, 3, world.rank, 3, store, "x",
                                 Deadline::in_seconds(30));
  });
  EXPECT_LT(seconds_since(start), 10);
  for (const int rank : {0, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("rank 1 failed (its last words:"), HasSubstr("warp")));
}

}  // namespace
}  // namespace shoal::collectives
