// shoal-collective-perf: the real program, by itself and on two ranks started through
// torchrun's variables.
#include <algorithm>
#include <sstream>

#include "apps/program.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using test::ProgramOptions;
using test::ProgramResult;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ProgramResult perf(std::vector<std::string> words, const ProgramOptions& options = {}) {
  words.insert(words.begin(), SHOAL_PERF_PROGRAM);
  return test::run_program(words, options);
}

std::vector<ProgramResult> perf_ranks(int ranks, std::vector<std::string> words) {
  const testing::TemporaryDirectory store;
  std::vector<std::vector<std::string>> environments;
  for (int rank = 0; rank < ranks; ++rank)
    environments.push_back({"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(ranks),
                            "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1",
                            "SHOAL_STORE_DIR=" + store.path()});
  words.insert(words.begin(), SHOAL_PERF_PROGRAM);
  return test::run_programs(words, environments);
}

// Returns rank 0's result. The other ranks must exit with 0.
ProgramResult perf_on_ranks(int ranks, const std::vector<std::string>& words) {
  const auto results = perf_ranks(ranks, words);
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.err;
  return results.front();
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

TEST(CollectivePerf, OneRowASizeEachChecked) {
  const auto result = perf_on_ranks(
      2, {"all_reduce", "-b", "8", "-e", "64k", "-f", "32", "-n", "5", "--stats", "-F", "json"});
  std::vector<std::int64_t> sizes;
  for (const nlohmann::json& row : json_lines(result.out)) {
    sizes.push_back(row["size"]);
    EXPECT_EQ(row["ranks"], 2);
    EXPECT_EQ(row["actual_iterations"], 5);
    for (const std::string place : {"out_of_place", "in_place"}) {
      EXPECT_EQ(row[place]["nwrong"], 0);
      EXPECT_GT(row[place]["bus_bw"], 0);
      const auto& each = row[place + "_per_iter"];
      EXPECT_EQ(each["times_us"].size(), 5);
      EXPECT_LE(each["min_us"], each["p50_us"]);
      EXPECT_LE(each["p50_us"], each["p99_us"]);
      EXPECT_LE(each["p99_us"], each["max_us"]);
    }
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{8, 256, 8192}));
}

// The row names what ran, not what was requested.
TEST(CollectivePerf, SaysWhichAlgorithmAndTransportRan) {
  const auto row = [](const std::vector<std::string>& words) {
    return nlohmann::json::parse(perf_on_ranks(2, words).out);
  };
  const auto direct = row({"reduce_scatter", "--algorithm", "ring", "-b", "1m", "-e", "1m", "-n",
                           "2", "--place", "out", "--json"});
  EXPECT_EQ(direct["algorithm_asked"], "ring");
  EXPECT_EQ(direct["out_of_place"]["algorithm"], "direct");
  EXPECT_EQ(direct["transport"], "shm");
  const auto small =
      row({"all_reduce", "-b", "8", "-e", "8", "-n", "2", "--place", "in", "--json"});
  EXPECT_EQ(small["algorithm_asked"], "table");
  EXPECT_EQ(small["in_place"]["algorithm"], "inline");
  const auto ring = row({"all_reduce", "--algorithm", "ring", "-b", "1m", "-e", "1m", "-n", "2",
                         "--place", "in", "--json"});
  EXPECT_EQ(ring["in_place"]["algorithm"], "ring");
}

// The deadline applies to each wait, not to the whole run.
TEST(CollectivePerf, MayTakeLongerThanItsDeadline) {
  perf_on_ranks(2, {"all_reduce", "-b", "64m", "-e", "64m", "-n", "150", "--deadline", "2", "-c",
                    "0", "--place", "in"});
}

TEST(CollectivePerf, EveryOperationOfNcclTests) {
  for (const char* operation : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                "gather", "scatter", "all_to_all", "send_recv", "barrier"}) {
    const auto result = perf_on_ranks(
        3, {operation, "--sizes", "3k,3000", "-n", "3", "-d", "bf16", "-o", "avg", "-r", "2"});
    EXPECT_THAT(result.out, HasSubstr("# Out of bounds values : 0 OK\n")) << operation;
    EXPECT_THAT(result.out, HasSubstr(std::string("starting: ") + operation + "_perf\n"));
  }
}

// Otherwise nothing would be measured, and every result would pass the check.
TEST(CollectivePerf, RefusesPlacesThatTheOperationLacks) {
  for (const char* operation : {"all_to_all", "send_recv"}) {
    const auto result = perf({operation, "--place", "in", "-b", "8", "-e", "8"});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(std::string(operation) + " is never in place"));
  }
  EXPECT_THAT(perf({"barrier", "--place", "out"}).err, HasSubstr("is never out of place"));
}

TEST(CollectivePerf, StepsBeyondTheLargestSizeAreTheEnd) {
  const auto result = perf({"-b", "8", "-e", "64", "-f", "1e30", "-n", "2", "--json"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 1) << result.out;
}

// Rank 0 reports once what was not done as requested.
TEST(CollectivePerf, OneRankReportsIgnoredRequests) {
  const auto results =
      perf_ranks(2, {"--algorithm", "tree", "-b", "8", "-e", "8", "-n", "2", "-G", "3"});
  EXPECT_THAT(results[0].err, HasSubstr("[rank 0] algorithm tree is for messages between hosts"));
  EXPECT_THAT(results[0].err, HasSubstr("-G 3 is ignored: "));
  EXPECT_EQ(results[1].err, "");
}

// A mistake that every rank finds, in the command line or later, is printed once.
TEST(CollectivePerf, OneRankPrintsAnError) {
  for (const auto& [words, problem] :
       {std::pair{std::vector<std::string>{"--nonsense"}, "there is no option '--nonsense'"},
        std::pair{std::vector<std::string>{"-b", "8q"}, "'8q' is not a size"},
        std::pair{std::vector<std::string>{"-t", "2", "-r", "9", "broadcast"},
                  "-r 9 in a group of 6"}}) {
    std::string all;
    for (const ProgramResult& rank : perf_ranks(3, words)) {
      EXPECT_NE(rank.status, 0);
      all += rank.err;
    }
    EXPECT_EQ(std::ranges::count(all, '\n'), 1) << all;
    EXPECT_THAT(all, HasSubstr(problem));
  }
}

TEST(CollectivePerf, ReportsWrongArguments) {
  const auto operation = perf({"all_redcue"});
  EXPECT_NE(operation.status, 0);
  EXPECT_THAT(operation.err, StartsWith("shoal-collective-perf: 'all_redcue' is not an operation; "
                                        "did you mean all_reduce?"));
  EXPECT_THAT(perf({"-b", "8q"}).err, HasSubstr("'8q' is not a size"));
  EXPECT_THAT(perf({"-f", "1"}).err, HasSubstr("sizes must grow"));
  EXPECT_THAT(perf({"broadcast", "-r", "3"}).err, HasSubstr("-r 3 in a group of 1"));
  EXPECT_THAT(perf({"--deadline", "-3"}).err, HasSubstr("--deadline -3; give seconds above 0"));
  EXPECT_EQ(perf({"--nonsense"}).status, 2);
  EXPECT_THAT(perf({"--min-bytes", "8"}).err,
              HasSubstr("there is no option '--min-bytes'; did you mean --minbytes?"));
  const auto full = test::run_program(
      {"/bin/sh", "-c", std::string("exec ") + SHOAL_PERF_PROGRAM + " -b 8 -e 8 > /dev/full"});
  EXPECT_EQ(full.status, 4);
  EXPECT_THAT(full.err, HasSubstr("cannot write to standard output"));
  const auto help = perf({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("--minbytes"));
}

}  // namespace
}  // namespace shoal
