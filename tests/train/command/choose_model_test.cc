// Ranks on several hosts find the directory of a run's model.
#include "shoal/train/command/choose_model.h"

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "support/ranks.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"

namespace shoal::command {

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::StrEq;

// Ranks 0 to 2 on host 0, 3 and 4 on host 1.
struct Hosts {
  std::mutex mutex;
  std::map<int, int> looked;       // times, by rank
  std::vector<std::string> found;  // by rank
  std::vector<std::string> errors;
  std::set<ErrorCode> codes;  // codes of the errors
  ErrorCode code = ErrorCode::not_found;

  // `path`: by rank. `fails`: the rank that throws an error with code `code`; -1: none.
  void run(const std::vector<std::string>& path, int fails = -1) {
    found.assign(path.size(), "nothing");
    const auto look = [&](World world, Store& store) {
      world.node = world.rank < 3 ? 0 : 1;
      world.local_rank = world.rank % 3;
      const auto at = static_cast<std::size_t>(world.rank);
      const std::string there = shared_model_directory(
          path[at], world, store, Deadline::in_seconds(20), [&](const std::string& asked) {
            const std::scoped_lock lock(mutex);
            ++looked[world.rank];
            if (world.rank == fails) throw Error(code, asked + " is no model", "give one");
            return fmt::format("{}/checkpoint-{}", asked, world.node);
          });
      const std::scoped_lock lock(mutex);
      found[at] = there;
    };
    errors = test::thread_rank_errors(static_cast<int>(path.size()),
                                      [&](const World& world, Store& store) {
                                        try {
                                          look(world, store);
                                        } catch (const Error& error) {
                                          const std::scoped_lock lock(mutex);
                                          codes.insert(error.code());
                                          throw;
                                        }
                                      });
  }
};

TEST(SharedModelDirectory, OneRankAHostLooks) {
  Hosts hosts;
  hosts.run(std::vector<std::string>(5, "runs"));
  EXPECT_THAT(hosts.looked, ElementsAre(Pair(0, 1), Pair(3, 1)));
  EXPECT_THAT(hosts.found,
              ElementsAre("runs/checkpoint-0", "runs/checkpoint-0", "runs/checkpoint-0",
                          "runs/checkpoint-1", "runs/checkpoint-1"));
}

TEST(SharedModelDirectory, ARankWithAnotherPathLooksByItself) {
  Hosts hosts;
  hosts.run({"runs", "runs", "others", "", ""});
  EXPECT_THAT(hosts.looked, ElementsAre(Pair(0, 1), Pair(2, 1)));
  EXPECT_THAT(hosts.found,
              ElementsAre("runs/checkpoint-0", "runs/checkpoint-0", "others/checkpoint-0", "", ""));
}

TEST(SharedModelDirectory, AllRanksThrowTheErrorOfOne) {
  for (const ErrorCode code : {ErrorCode::not_found, ErrorCode::corrupt_data, ErrorCode::io}) {
    Hosts hosts;
    hosts.code = code;
    hosts.run(std::vector<std::string>(5, "runs"), 3);
    EXPECT_THAT(hosts.errors, Each(StrEq("runs is no model; give one")));
    EXPECT_THAT(hosts.codes, ElementsAre(code));
  }
}

}  // namespace
}  // namespace shoal::command
