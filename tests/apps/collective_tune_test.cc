// shoal-collective-tune: its decisions from timings, and the real program on two ranks.
#include <fstream>
#include <sstream>

#include "apps/collective_tune/decide.h"
#include "apps/program.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal::tune {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Timed timed(Algorithm algorithm, std::vector<double> seconds) {
  return {{algorithm, 0}, std::move(seconds)};
}

TEST(CollectiveTune, ChoosesOnlySteadyWinners) {
  const Timed usual = timed(Algorithm::automatic, {10, 10, 10, 10});
  const auto won = [&](std::vector<Timed> others) {
    others.insert(others.begin(), usual);
    return winner(others, 0.05);
  };
  EXPECT_EQ(won({}), std::nullopt);
  EXPECT_EQ(won({timed(Algorithm::ring, {9, 9, 9, 9})}), 1u);
  EXPECT_EQ(won({timed(Algorithm::ring, {9.6, 9.6, 9.6, 9.6})}), std::nullopt);  // below 5 %
  EXPECT_EQ(won({timed(Algorithm::ring, {1, 1, 11, 11})}), std::nullopt);        // half the rounds
  EXPECT_EQ(won({timed(Algorithm::ring, {9, 9, 9, 9}), timed(Algorithm::tree, {8, 8, 8, 8})}), 2u);
  // Within 1 % the earlier choice stays.
  EXPECT_EQ(
      won({timed(Algorithm::ring, {9, 9, 9, 9}), timed(Algorithm::tree, {8.95, 8.95, 8.95, 8.95})}),
      1u);
}

TEST(CollectiveTune, NeighboursOfOneChoiceBecomeOneRule) {
  const auto gain = [](std::int64_t bytes, Choice choice) {
    return Gain{Operation::all_reduce, bytes, MemoryKind::host, 4, 1, choice, 2, 1};
  };
  const std::vector<std::int64_t> sizes{1024, 4096, 16384, 65536};
  const Choice ring{Algorithm::ring, 0}, sliced{Algorithm::ring, 2048};
  std::vector<std::string> rules;
  for (const auto& rule :
       rules_of({gain(16384, sliced), gain(1024, ring), gain(4096, ring)}, sizes))
    rules.push_back(collectives::to_string(rule));
  EXPECT_THAT(rules, ElementsAre("all_reduce:0-16k:host:[4]:{1}:inf:@ring",
                                 "all_reduce:16k-64k:host:[4]:{1}:inf:@ring/2k"));
  rules.clear();
  for (const auto& rule : rules_of({gain(4096, ring), gain(65536, ring)}, sizes))
    rules.push_back(collectives::to_string(rule));
  EXPECT_THAT(rules, ElementsAre("all_reduce:4k-16k:host:[4]:{1}:inf:@ring",
                                 "all_reduce:64k-128k:host:[4]:{1}:inf:@ring"));
}

// Returns rank 0's result. The other ranks must exit with 0.
shoal::test::ProgramResult tune_on_ranks(const std::vector<std::string>& hosts,
                                         const std::vector<std::string>& words) {
  const testing::TemporaryDirectory store;
  std::vector<std::vector<std::string>> environments;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    environments.push_back({"RANK=" + std::to_string(rank),
                            "WORLD_SIZE=" + std::to_string(hosts.size()), "MASTER_ADDR=127.0.0.1",
                            "MASTER_PORT=1", "SHOAL_STORE_DIR=" + store.path(),
                            "SHOAL_HOST_NAME=" + hosts[rank]});
  std::vector<std::string> program = words;
  program.insert(program.begin(), SHOAL_TUNE_PROGRAM);
  const auto results = shoal::test::run_programs(program, environments);
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.err;
  return results.front();
}

TEST(CollectiveTune, WritesATableThatIsReadBack) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory.path() + "/tuned";
  const auto result = tune_on_ranks({"a", "a"}, {"--operations", "all_reduce,all_gather", "--sizes",
                                                 "64,64k", "--rounds", "3", "--json", "-o", path});
  std::istringstream lines(result.out);
  int rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    const auto row = nlohmann::json::parse(line);
    EXPECT_EQ(row["ranks"], 2);
    EXPECT_GT(row["default_us"], 0);
    EXPECT_LE(row["best_us"], row["default_us"]);
    EXPECT_TRUE(row["median_us"].contains("default"));
  }
  EXPECT_EQ(rows, 2 * 2 * 2);  // operations, sizes, kinds of memory
  std::ostringstream table;
  table << std::ifstream(path).rdbuf();
  EXPECT_THAT(table.str(), StartsWith("// shoal-collective-tune "));
  collectives::AlgorithmSelector selector;
  selector.add("@" + path, "test");
  // The tool runs again while its rules are in force.
  tune_on_ranks({"a", "a"}, {"--operations", "all_reduce", "--sizes", "64", "--rounds", "3",
                             "--collectives", "@" + path});
}

TEST(CollectiveTune, TunesHostsRailsAndTheWholeOnSeveralHosts) {
  const auto result = tune_on_ranks({"a", "a", "b", "b"},
                                    {"--operations", "all_reduce", "--sizes", "4k", "--rounds", "3",
                                     "--memory", "symmetric", "--transport", "tcp", "--json"});
  std::istringstream lines(result.out);
  std::vector<std::pair<int, int>> groups;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    groups.emplace_back(row["ranks"], row["nodes"]);
  }
  EXPECT_THAT(groups, ElementsAre(std::pair(2, 1), std::pair(2, 2), std::pair(4, 2)));
}

TEST(CollectiveTune, PrintsTheTableInForce) {
  const auto result =
      tune_on_ranks({"a", "a"}, {"--print", "--collectives", "all_reduce:0-1k:@ring"});
  EXPECT_THAT(result.out, HasSubstr("all_reduce:0-8193:[2]:{1}:20:@inline"));
  EXPECT_THAT(result.out, HasSubstr("all_reduce:0-1k:inf:@ring"));
  std::vector<collectives::Rule> rules = collectives::parse_rules(result.out, "test");
  EXPECT_GT(rules.size(), 10u);
}

TEST(CollectiveTune, ReportsWrongArguments) {
  const auto run = [](std::vector<std::string> words) {
    words.insert(words.begin(), SHOAL_TUNE_PROGRAM);
    return shoal::test::run_program(words);
  };
  EXPECT_THAT(run({"--operations", "all_redcue"}).err, HasSubstr("did you mean all_reduce?"));
  EXPECT_THAT(run({"--rounds", "1"}).err, HasSubstr("--rounds 1"));
  EXPECT_EQ(run({"--nonsense"}).status, 2);
  EXPECT_EQ(run({"--help"}).status, 0);
  const auto alone = run({});
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.err, HasSubstr("a single rank has nothing to tune"));
}

}  // namespace
}  // namespace shoal::tune
