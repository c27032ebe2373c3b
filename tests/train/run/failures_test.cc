// When several ranks fail, these tests check which of them report.
#include "shoal/train/run/failures.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "support/hostile_cards.h"
#include "support/ranks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::mutex mutex;
std::vector<std::string> lines;

}  // namespace

void report_error(const std::string&, const std::string& text) {
  const std::scoped_lock lock(mutex);
  lines.push_back(text);
}

namespace {

// The reported lines if ranks fail with these errors. All ranks end with `status`.
std::vector<std::string> said(const std::vector<std::optional<Error>>& failures, int status,
                              bool training_began = false) {
  lines.clear();
  test::run_thread_ranks(static_cast<int>(failures.size()), [&](const World& world, Store& store) {
    EXPECT_EQ(tell_failures(world, store, "test", failures[static_cast<std::size_t>(world.rank)],
                            Deadline::in_seconds(20), {}, training_began),
              status);
  });
  std::ranges::sort(lines);
  return lines;
}

Error full(int rank) {
  return {ErrorCode::io, fmt::format("cannot write shard {}: No space left on device", rank),
          "make room, or write to another directory"};
}

TEST(Failures, OnAllRanksAreReportedOnce) {
  const Error wrong(ErrorCode::invalid_argument, "4 heads", "use 2");
  EXPECT_THAT(said({wrong, wrong, wrong}, kWrongOptions), ElementsAre("4 heads; use 2"));
}

TEST(Failures, WithOneRemedyAreReportedByTheLowestRank) {
  const std::string text =
      ": No space left on device [rank 1]; make room, or write to another "
      "directory";
  EXPECT_THAT(said({std::nullopt, full(1), full(2), full(3)}, kNoResources),
              ElementsAre("cannot write shard 1" + text + " (and so 2 other ranks)"));
  EXPECT_THAT(said({std::nullopt, full(1)}, kNoResources),
              ElementsAre("cannot write shard 1" + text));
}

// An error that ends a run after its first step is not caused by an option.
TEST(Failures, AfterTrainingBeganAreNotWrongOptions) {
  for (const ErrorCode code : {ErrorCode::unavailable, ErrorCode::invalid_argument})
    for (const bool began : {false, true})
      EXPECT_THAT(said({Error(code, "lost")}, began ? kFailed : kWrongOptions, began),
                  ElementsAre("lost"));
  for (const bool began : {false, true})
    EXPECT_THAT(said({Error(ErrorCode::not_found, "lost")}, kBadInput, began), ElementsAre("lost"));
}

TEST(Failures, WithDifferentCausesAreAllReported) {
  const Error noticed(ErrorCode::aborted, "rank 2 aborted");
  const Error memory(ErrorCode::out_of_memory, "out of memory");
  EXPECT_THAT(said({noticed, full(1), memory}, kNoResources),
              ElementsAre("cannot write shard 1: No space left on device [rank 1]; make room, or "
                          "write to another directory",
                          "out of memory [rank 2]"));
  EXPECT_THAT(said({noticed, std::nullopt, noticed}, kPeersFailed),
              ElementsAre("rank 2 aborted [rank 0]"));
}

// Rank 0 of two ranks reads unreadable cards of rank 1, in tell_failures and exchange_answers.
TEST(Failures, UnreadableCardsNameTheirRank) {
  auto cards = test::hostile_cards();
  cards.insert(cards.end(), {R"([1,false,"a"])", R"([6,false,"a","b"])", R"([-1,false,"a","b"])",
                             R"([1,0,"a","b"])", R"([1,false,7,"b"])", R"([1,false,"a",null])",
                             R"([9223372036854775808,false,"a","b"])", R"([1.5,false,"a","b"])"});
  for (const std::string& card : cards) {
    lines.clear();
    const auto store = make_hash_store();
    test::PlantedStore planted(*store, "/1", card);
    EXPECT_EQ(tell_failures(test::local_world(0, 2), planted, "test", std::nullopt,
                            Deadline::in_seconds(5)),
              kPeersFailed)
        << test::shown(card);
    EXPECT_THAT(lines, ElementsAre(HasSubstr("failures: the card of rank 1 is unreadable")));
  }
}

TEST(Answers, FromTheFirstRankOfEachHostReachTheOthers) {
  test::run_thread_ranks(3, [](World world, Store& store) {
    world.nodes = 2;
    world.node = world.rank / 2;
    const std::string own =
        world.rank == 1 ? "" : as_text(HostAnswer{world.node, fmt::format("a{}", world.rank), ""});
    const auto all = exchange_answers(world, store, "x", own, Deadline::in_seconds(20));
    ASSERT_EQ(all.size(), 3U);
    EXPECT_EQ(all[0].node, 0);
    EXPECT_EQ(all[0].first, "a0");
    EXPECT_EQ(all[1].node, -1);
    EXPECT_EQ(all[2].node, 1);
    EXPECT_EQ(all[2].first, "a2");
  });
}

TEST(Answers, AllRanksThrowAFailedAnswer) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    (void)exchange_answers(world, store, "x", world.rank == 0 ? as_text(full(7)) : "",
                           Deadline::in_seconds(20));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, full(7).what());
}

TEST(Answers, UnreadableAnswersNameTheirRank) {
  auto cards = test::hostile_cards();
  std::erase(cards, "");  // this rank wrote none
  cards.insert(cards.end(),
               {"0\na", "-1\na\nb", "2\na\nb", "9223372036854775808\na\nb", R"(![11,"a","b"])",
                R"(![-1,"a","b"])", R"(![2,"a"])", R"(![2,"a",null])", R"(![2147483648,"a","b"])"});
  for (const std::string& card : cards) {
    const auto store = make_hash_store();
    test::PlantedStore planted(*store, "/1", card);
    World world = test::local_world(0, 2);
    world.nodes = 1;
    const Error error = test::error_from(
        [&] { (void)exchange_answers(world, planted, "tokens", "", Deadline::in_seconds(5)); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << test::shown(card) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("tokens: the card of rank 1 is unreadable"));
  }
}

// Rank 2 is gone. The survivors do not wait for its card, and one of them reports at once.
TEST(Failures, SurvivorsReportWithoutTheLostRank) {
  lines.clear();
  const Error died(ErrorCode::peer_lost, "rank 2 died");
  const auto began = Clock::now();
  test::run_thread_ranks(3, [&](const World& world, Store& store) {
    if (world.rank == 2) return;
    EXPECT_EQ(tell_failures(world, store, "test", died, Deadline::in_seconds(20),
                            [](int rank) { return rank == 2; }),
              kPeersFailed);
  });
  EXPECT_LT(seconds_since(began), 5);
  EXPECT_THAT(lines, ElementsAre("rank 2 died [rank 0]"));
}

// Rank 1 was stopped while rank 0 aborted the job and ended. Rank 1's own log has the reason.
TEST(Failures, AnAbortedRankReportsIfRank0IsGone) {
  lines.clear();
  const Error aborted(ErrorCode::aborted, "rank 0: all_reduce did not finish within 5.0 s");
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    if (world.rank == 0) return;
    EXPECT_EQ(tell_failures(world, store, "test", aborted, Deadline::in_seconds(20),
                            [](int rank) { return rank == 0; }),
              kPeersFailed);
  });
  EXPECT_THAT(lines, ElementsAre("rank 0: all_reduce did not finish within 5.0 s"));
}

// The lost rank wrote its card before it ended.
TEST(Failures, TheCardOfALostRankIsRead) {
  lines.clear();
  const Error cause(ErrorCode::io, "no disk");
  const Error noticed(ErrorCode::peer_lost, "rank 0 died");
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    if (world.rank == 0) {
      tell_failures(world, store, "test", cause, Deadline::in_seconds(0.1),
                    [](int) { return false; });
      store.set("over", "");
      return;
    }
    store.get("over", Deadline::in_seconds(20));
    EXPECT_EQ(tell_failures(world, store, "test", noticed, Deadline::in_seconds(1),
                            [](int) { return false; }),
              kNoResources);
  });
  EXPECT_THAT(lines, ElementsAre("no disk [rank 0]"));
}

}  // namespace
}  // namespace shoal
