#include "shoal/runtime/rendezvous/roll_call.h"

#include <future>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RollCall, GivesAllValuesInRankOrder) {
  const auto store = make_hash_store();
  auto other = std::async(std::launch::async, [&] {
    return call_roll(*store, "x", 1, 2, "one", Deadline::in_seconds(20));
  });
  std::vector<int> seen;
  const RollCall roll = call_roll(*store, "x", 0, 2, "zero", Deadline::in_seconds(20),
                                  [&](int rank, std::string_view) { seen.push_back(rank); });
  EXPECT_THAT(roll.missing, IsEmpty());
  EXPECT_THAT(roll.values, ElementsAre("zero", "one"));
  EXPECT_THAT(seen, ElementsAre(0, 1));
  EXPECT_THAT(other.get().values, ElementsAre("zero", "one"));
}

TEST(RollCall, ListsAllMissingRanksAndSeesTheValuesBehindThem) {
  const auto store = make_hash_store();
  store->set("x/2", "two");
  std::vector<int> seen;
  const RollCall roll = call_roll(*store, "x", 0, 4, "zero", Deadline::in_seconds(0.01),
                                  [&](int rank, std::string_view) { seen.push_back(rank); });
  EXPECT_THAT(roll.missing, ElementsAre(1, 3));
  EXPECT_THAT(seen, ElementsAre(0, 2));
}

// Rank 0 serves the store and may end once it knows who is missing.
TEST(RollCall, TellsRanksWithALaterDeadlineWhoIsMissing) {
  const auto store = make_hash_store();
  auto later = std::async(std::launch::async, [&] {
    const auto start = Clock::now();
    const RollCall roll = call_roll(*store, "x", 1, 3, "one", Deadline::in_seconds(60));
    EXPECT_LT(seconds_since(start), 30);
    return roll;
  });
  (void)store->get("x/1", Deadline::in_seconds(20));
  EXPECT_THAT(call_roll(*store, "x", 0, 3, "zero", Deadline::in_seconds(0.1)).missing,
              ElementsAre(2));
  EXPECT_THAT(later.get().missing, ElementsAre(2));
}

}  // namespace
}  // namespace shoal
