// shoal-collective-perf: the real binary, alone and on two ranks that torchrun's variables start.
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

// Rank 0's result; the others must end well.
ProgramResult perf_on_ranks(int ranks, const std::vector<std::string>& words) {
  const testing::TemporaryDirectory store;
  std::vector<std::vector<std::string>> environments;
  for (int rank = 0; rank < ranks; ++rank)
    environments.push_back({"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(ranks),
                            "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1",
                            "SHOAL_STORE_DIR=" + store.path()});
  std::vector<std::string> program = words;
  program.insert(program.begin(), SHOAL_PERF_PROGRAM);
  const auto results = test::run_programs(program, environments);
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.err;
  return results.front();
}

TEST(CollectivePerf, OneRowASizeEachChecked) {
  const auto result =
      perf_on_ranks(2, {"all_reduce", "-b", "8", "-e", "64k", "-f", "32", "-n", "5", "--json"});
  std::istringstream lines(result.out);
  std::vector<std::int64_t> sizes;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    sizes.push_back(row["bytes"]);
    EXPECT_EQ(row["ranks"], 2);
    for (const char* place : {"out_of_place", "in_place"}) {
      EXPECT_EQ(row[place]["wrong"], 0);
      EXPECT_EQ(row[place]["iterations"], 5);
      EXPECT_GT(row[place]["busbw_GBps"], 0);
      EXPECT_LE(row[place]["min_us"], row[place]["p50_us"]);
      EXPECT_LE(row[place]["p50_us"], row[place]["p99_us"]);
    }
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{8, 256, 8192}));
}

// What ran, not what was asked for.
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

// The deadline is that of a wait, not of the run.
TEST(CollectivePerf, MayTakeLongerThanItsDeadline) {
  perf_on_ranks(2, {"all_reduce", "-b", "64m", "-e", "64m", "-n", "150", "--deadline", "2", "-c",
                    "0", "--place", "in"});
}

TEST(CollectivePerf, EveryOperationOfNcclTests) {
  for (const char* operation : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                "gather", "scatter", "all_to_all", "send_recv", "barrier"}) {
    const auto result = perf_on_ranks(
        3, {operation, "--sizes", "3k,3000", "-n", "3", "-d", "bf16", "-o", "avg", "-r", "2"});
    EXPECT_THAT(result.out, HasSubstr("every result right")) << operation;
    EXPECT_THAT(result.out, HasSubstr(std::string("# ") + operation)) << result.out;
  }
}

TEST(CollectivePerf, SaysWhatIsWrongWithItsArguments) {
  const auto operation = perf({"all_redcue"});
  EXPECT_NE(operation.status, 0);
  EXPECT_THAT(operation.err, StartsWith("shoal-collective-perf: 'all_redcue' is not an operation; "
                                        "did you mean all_reduce?"));
  EXPECT_THAT(perf({"-b", "8q"}).err, HasSubstr("'8q' is not a size"));
  EXPECT_THAT(perf({"-f", "1"}).err, HasSubstr("sizes must grow"));
  EXPECT_THAT(perf({"-r", "3"}).err, HasSubstr("-r 3 in a group of 1"));
  EXPECT_EQ(perf({"--nonsense"}).status, 2);
  const auto help = perf({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("--min-bytes"));
}

}  // namespace
}  // namespace shoal
