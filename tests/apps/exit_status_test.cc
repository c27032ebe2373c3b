// Exit statuses of the real programs, one test a status.
#include <fstream>
#include <utility>

#include "apps/shoal_fixture.h"

namespace shoal {
namespace {

class ExitStatus : public Shoal {
 protected:
  static int status_of(const std::vector<std::string>& words, const ProgramOptions& options = {}) {
    const ProgramResult result = test::run_program(words, options);
    EXPECT_TRUE(result.status == 0 || is_one_line(result.err)) << result.err;
    return result.status;
  }
  // Standard output on a full disk.
  static int status_without_room(const std::string& words) {
    return status_of({"/bin/sh", "-c", "exec " + words + " > /dev/full"});
  }
};

TEST_F(ExitStatus, Is0OfWhatIsDone) {
  for (const char* program : {SHOAL_PROGRAM, SHOAL_PERF_PROGRAM, SHOAL_TUNE_PROGRAM})
    EXPECT_EQ(status_of({program, "--help"}), 0) << program;
  const ProgramResult table = shoal({"help", "exit-status"});
  EXPECT_EQ(table.status, 0) << table.err;
  for (const char* row : {"  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  ", "  128 + N  "})
    EXPECT_THAT(table.out, HasSubstr(row));
}

TEST_F(ExitStatus, VersionsNameCommitAndBuild) {
  for (const auto& [program, name] :
       {std::pair{SHOAL_PROGRAM, "shoal"}, std::pair{SHOAL_PERF_PROGRAM, "shoal-collective-perf"},
        std::pair{SHOAL_TUNE_PROGRAM, "shoal-collective-tune"},
        std::pair{SHOAL_CONTAINER_PROGRAM, "train"}})
    EXPECT_THAT(test::run_program({program, "--version"}).out,
                ::testing::MatchesRegex(std::string(name) + " [0-9]+[.][0-9]+[.][0-9]+ [(]commit "
                                                            "([0-9a-f]+|unknown), [A-Za-z]+[)]\n"));
}

TEST_F(ExitStatus, Is1OfAnswersThatAreNo) {
  EXPECT_EQ(status_of({SHOAL_PROGRAM, "doctor", "--need", "GPU"},
                      {.environment = {"CUDA_VISIBLE_DEVICES="}}),
            1);
}

TEST_F(ExitStatus, Is2OfWrongOptions) {
  for (const char* program : {SHOAL_PROGRAM, SHOAL_PERF_PROGRAM, SHOAL_TUNE_PROGRAM})
    EXPECT_EQ(status_of({program, "--nonsense"}), 2) << program;
  EXPECT_EQ(status_of({SHOAL_PROGRAM, "train", "--learning_rate", "fast"}), 2);
  EXPECT_EQ(status_of({SHOAL_PROGRAM, "data", "prepare"}), 2);
  EXPECT_EQ(status_of({SHOAL_PROGRAM, "help", "trian"}), 2);
  EXPECT_EQ(status_of({SHOAL_PROGRAM, "version"}, {.environment = {"SHOAL_THREADS=x"}}), 2);
}

TEST_F(ExitStatus, Is3OfInputThatIsMissingOrDamaged) {
  EXPECT_EQ(status_of({SHOAL_PROGRAM, "report", mine_ / "nowhere"}), 3);
  EXPECT_EQ(status_of({SHOAL_PROGRAM, "generate", "-m", mine_ / "nowhere", "-p", "x"}), 3);
  EXPECT_EQ(train({"--train_file", mine_ / "nowhere.txt"}).status, 3);
  std::ofstream(mine_ / "torn.jsonl") << R"({"text": "a fi)";
  EXPECT_EQ(train({"--train_file", mine_ / "torn.jsonl"}).status, 3);
}

TEST_F(ExitStatus, Is4WithoutDiskOrMemory) {
  EXPECT_EQ(status_without_room(SHOAL_PROGRAM " version"), 4);
  EXPECT_EQ(status_without_room(SHOAL_PERF_PROGRAM " -b 8 -e 8"), 4);
  EXPECT_EQ(status_without_room(SHOAL_TUNE_PROGRAM " --print"), 4);
  EXPECT_EQ(train({"--memory_limit_mb", "0.1"}).status, 4);
}

TEST_F(ExitStatus, Is5WhenARankDoesNotCome) {
  const int port = testing::free_port();
  const ProgramOptions alone{.environment = {"RANK=1", "LOCAL_RANK=0", "WORLD_SIZE=2",
                                             "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
                                             fmt::format("MASTER_PORT={}", port),
                                             "SHOAL_DEADLINE_S=1"}};
  EXPECT_EQ(status_of({SHOAL_PERF_PROGRAM}, alone), 5);
  EXPECT_EQ(status_of({SHOAL_TUNE_PROGRAM}, alone), 5);
  EXPECT_EQ(train({}, alone).status, 5);
}

}  // namespace
}  // namespace shoal
