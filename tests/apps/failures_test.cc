// Which ranks speak when several fail.
#include "apps/failures.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "apps/commands.h"
#include "support/ranks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace shoal::app {
namespace {

using ::testing::ElementsAre;

std::mutex mutex;
std::vector<std::string> lines;

}  // namespace

void report_error(const std::string&, const std::string& text) {
  const std::scoped_lock lock(mutex);
  lines.push_back(text);
}

namespace {

// What is said where ranks fail so; all end with `status`.
std::vector<std::string> said(const std::vector<std::optional<Error>>& failures, int status) {
  lines.clear();
  test::run_thread_ranks(static_cast<int>(failures.size()), [&](const World& world, Store& store) {
    EXPECT_EQ(tell_failures(world, store, "test", failures[static_cast<std::size_t>(world.rank)],
                            Deadline::in_seconds(20)),
              status);
  });
  std::ranges::sort(lines);
  return lines;
}

Error full(int rank) {
  return {ErrorCode::io, fmt::format("cannot write shard {}: No space left on device", rank),
          "make room, or write to another directory"};
}

TEST(Failures, OfEverybodyAreSaidOnce) {
  const Error wrong(ErrorCode::invalid_argument, "4 heads", "use 2");
  EXPECT_THAT(said({wrong, wrong, wrong}, kWrongOptions), ElementsAre("4 heads; use 2"));
}

TEST(Failures, ThatOneRemedyHelpsAreSaidByTheLowest) {
  const std::string text =
      ": No space left on device [rank 1]; make room, or write to another "
      "directory";
  EXPECT_THAT(said({std::nullopt, full(1), full(2), full(3)}, kFailed),
              ElementsAre("cannot write shard 1" + text + " (and so 2 other ranks)"));
  EXPECT_THAT(said({std::nullopt, full(1)}, kFailed), ElementsAre("cannot write shard 1" + text));
}

TEST(Failures, OfDifferentCausesAreAllSaid) {
  const Error noticed(ErrorCode::aborted, "rank 2 aborted");
  const Error memory(ErrorCode::out_of_memory, "out of memory");
  EXPECT_THAT(said({noticed, full(1), memory}, kFailed),
              ElementsAre("cannot write shard 1: No space left on device [rank 1]; make room, or "
                          "write to another directory",
                          "out of memory [rank 2]"));
  EXPECT_THAT(said({noticed, std::nullopt, noticed}, kFailed),
              ElementsAre("rank 2 aborted [rank 0]"));
}

}  // namespace
}  // namespace shoal::app
