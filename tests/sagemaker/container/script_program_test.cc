// The entry point with a Python script instead of `shoal train`, on trees laid out like /opt/ml.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "sagemaker/container/train_fixture.h"
#include "support/free_port.h"
#include "support/source_tree.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;
using test::ProgramOptions;
using test::ProgramResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = OptMl::Json;

bool has_program(const std::string& name) {
  return std::system(fmt::format("command -v {} > /dev/null", name).c_str()) == 0;
}

class Script : public Train {
 protected:
  static void SetUpTestSuite() {}
  static void TearDownTestSuite() {}
  void SetUp() override {
    if (!has_program("python3")) GTEST_SKIP() << "python3 is not installed";
  }
  // Makes ranks.py and its module the job's code, with these hyperparameters.
  static void fill(OptMl& ml, const Json& more) {
    Json all = {{"sagemaker_program", "\"ranks.py\""}, {"sagemaker_region", "\"us-east-1\""}};
    all.update(more);
    ml.hyperparameters(all);
    ml.channels({{"train", {"text.txt"}}});
    fs::copy(testing::source_path("tests/sagemaker/container/scripts"), ml.path("code"));
  }
  static Json ranks(int count, const char* mode) {
    return {{"sagemaker_distributed_dataparallel_enabled", "true"},
            {"sagemaker_mpi_num_of_processes_per_host", std::to_string(count)},
            {"mode", fmt::format("\"{}\"", mode)}};
  }
  static ProgramResult run(const OptMl& ml, ProgramOptions options = {}) {
    options.environment.insert(
        options.environment.end(),
        {fmt::format("MASTER_PORT={}", testing::free_port()), "PYTHONDONTWRITEBYTECODE=1",
         "PIP_NO_INDEX=1", "PIP_BREAK_SYSTEM_PACKAGES=1"});
    return train(ml, {}, options);
  }
  static Json record(const OptMl& ml, int rank) {
    return Json::parse(read_text_file(ml.path(fmt::format("output/data/rank-{}.json", rank))));
  }
  static std::string failure_of(const OptMl& ml) {
    return fs::exists(ml.path("output/failure")) ? read_text_file(ml.path("output/failure")) : "";
  }
};

TEST_F(Script, GetsTheVariablesOfAmazonsToolkit) {
  OptMl ml;
  fill(ml, {{"epochs", "2"}, {"text", "\"a b\""}, {"flag", "true"}});
  const ProgramResult result = run(ml, {.environment = {"PYTHONPATH=/elsewhere"}});
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_EQ(failure_of(ml), "");
  const Json got = record(ml, 0);
  EXPECT_THAT(got["arguments"], ElementsAre("--epochs", "2", "--flag", "True", "--text", "a b"));
  EXPECT_EQ(got["directory"], ml.path("code"));
  const Json& variables = got["variables"];
  EXPECT_EQ(variables["PYTHONPATH"], ml.path("code") + ":/elsewhere");
  EXPECT_EQ(variables["SM_MODEL_DIR"], ml.path("model"));
  EXPECT_EQ(variables["SM_CHANNEL_TRAIN"], ml.path("input/data/train"));
  EXPECT_EQ(variables["SM_HP_EPOCHS"], "2");
  EXPECT_EQ(variables["SM_HOSTS"], "[\"algo-1\"]");
  EXPECT_EQ(variables["SM_NUM_GPUS"], "0");
  EXPECT_FALSE(variables.contains("RANK"));  // the job has no distribution
}

TEST_F(Script, HasTorchrunsVariablesOnEachRank) {
  if (!has_program("mpirun")) GTEST_SKIP() << "mpirun is not installed";
  OptMl ml({"localhost"}, "localhost");
  fill(ml, ranks(2, "record"));
  const ProgramResult result = run(ml);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(record(ml, 0)["met"], ElementsAre(0, 1));
  for (const int rank : {0, 1}) {
    const Json variables = record(ml, rank)["variables"];
    EXPECT_EQ(variables["LOCAL_RANK"], std::to_string(rank));
    EXPECT_EQ(variables["LOCAL_WORLD_SIZE"], "2");
    EXPECT_EQ(variables["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(variables["ACCELERATE_TORCH_DEVICE"], "cpu");
    EXPECT_THAT(variables["SM_FRAMEWORK_PARAMS"].get<std::string>(),
                HasSubstr("\"sagemaker_distributed_dataparallel_enabled\":true"));
  }
}

// A distribution with one rank uses no mpirun, and has the same variables.
TEST_F(Script, HasTorchrunsVariablesWithOneRank) {
  OptMl ml;
  fill(ml, ranks(1, "record"));
  const ProgramResult result = run(ml);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_EQ(record(ml, 0)["variables"]["WORLD_SIZE"], "1");
}

TEST_F(Script, SaysWhyItFailed) {
  OptMl ml;
  fill(ml, {{"mode", "\"fail\""}});
  const ProgramResult result = run(ml);
  EXPECT_EQ(result.status, 1) << result.out << result.err;
  EXPECT_THAT(failure_of(ml),
              HasSubstr("ranks.py (exit status 1): ValueError: rank 0 has\nno answer\n"));
  EXPECT_THAT(failure_of(ml), HasSubstr("in answer\n"));
  EXPECT_THAT(result.out, HasSubstr("train: failed: ranks.py (exit status 1): ValueError"));
}

TEST_F(Script, SaysWhichRankWasKilled) {
  if (!has_program("mpirun")) GTEST_SKIP() << "mpirun is not installed";
  OptMl ml({"localhost"}, "localhost");
  fill(ml, ranks(2, "die"));
  const ProgramResult result = run(ml);
  EXPECT_EQ(result.status, 137) << result.out << result.err;
  EXPECT_THAT(failure_of(ml), HasSubstr("ranks.py, rank 0 (exit status 137): python3 was ended by "
                                        "signal 9 (Killed); killed, probably for memory"));
}

// The cases are one process, and two ranks of mpirun, which would kill rank 0 a second after its
// SIGTERM.
TEST_F(Script, SavesWhenItIsStopped) {
  for (const int count : {0, 2}) {
    if (count > 0 && !has_program("mpirun")) GTEST_SKIP() << "mpirun is not installed";
    OptMl ml({"localhost"}, "localhost");
    fill(ml, count == 0 ? Json{{"mode", "\"stop\""}} : ranks(count, "stop"));
    ProgramOptions stop;
    stop.signal_when_out_has = "ready";
    const ProgramResult result = run(ml, stop);
    EXPECT_EQ(result.status, 128 + SIGTERM) << result.out << result.err;
    EXPECT_THAT(result.out, HasSubstr("stopped by signal 15; ranks.py has ended"));
    EXPECT_EQ(failure_of(ml), "");
    for (int rank = 0; rank < std::max(count, 1); ++rank)
      EXPECT_TRUE(fs::exists(ml.path(fmt::format("output/data/saved-{}", rank)))) << rank;
  }
}

// There is no network, but the code contains a wheel.
TEST_F(Script, InstallsItsRequirements) {
  if (!has_program("python3 && python3 -m pip --version")) GTEST_SKIP() << "python3 has no pip";
  OptMl ml;
  fill(ml, {{"needs", "\"shoal_test_extra\""}});
  const std::string wheel = "shoal_test_extra-1.0-py3-none-any.whl";
  const auto made = test::run_program(
      {"python3", "-c",
       "import sys, zipfile\n"
       "with zipfile.ZipFile(sys.argv[1], 'w') as wheel:\n"
       "    info = 'shoal_test_extra-1.0.dist-info/'\n"
       "    wheel.writestr('shoal_test_extra.py', '')\n"
       "    wheel.writestr(info + 'METADATA', 'Metadata-Version: 2.1\\nName: shoal-test-extra\\n"
       "Version: 1.0\\n')\n"
       "    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n"
       "Tag: py3-none-any\\n')\n"
       "    wheel.writestr(info + 'RECORD', '')\n",
       ml.path("code/" + wheel)});
  ASSERT_EQ(made.status, 0) << made.err;
  ml.write("code/requirements.txt", "./" + wheel + "\n");
  const ProgramOptions here{
      .environment = {"PIP_TARGET=" + ml.path("site"), "PYTHONPATH=" + ml.path("site")}};
  const ProgramResult result = run(ml, here);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_TRUE(fs::exists(ml.path("output/data/rank-0.json")));

  fs::remove(ml.path("output/data/rank-0.json"));
  ml.write("code/requirements.txt", "shoal-test-nothing\n");
  const ProgramResult refused = run(ml, here);
  EXPECT_EQ(refused.status, 2);
  EXPECT_FALSE(fs::exists(ml.path("output/data/rank-0.json")));
  EXPECT_THAT(failure_of(ml),
              HasSubstr("requirements.txt cannot be installed: Could not find a version that "
                        "satisfies the requirement shoal-test-nothing (from versions: none)"));
  EXPECT_THAT(failure_of(ml), Not(HasSubstr("\n")));
}

TEST_F(Script, NeedsAnImageWithPython) {
  OptMl ml;
  fill(ml, Json::object());
  const ProgramResult result = train(ml, {"--python", "no-such-python"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(failure_of(ml),
              HasSubstr("entry_point is ranks.py, but this image has no Python (no-such-python); "
                        "use Shoal's image of the target pytorch (docker/)"));
}

// The container repeats SIGUSR1. A second SIGTERM could end the script before it has saved.
TEST_F(Script, GetsOneSignalThoughUsr1IsRepeated) {
  ProgramOptions stop;
  stop.signal_when_out_has = "up";
  stop.signal = SIGUSR1;
  const ProgramResult result =
      test::run_program({SHOAL_SAGEMAKER_TRAIN, "rank", "sh", "-c",
                         "n=0; trap 'n=$((n+1)); [ $n != 1 ] || kill -USR1 $PPID' TERM; echo up; "
                         "while [ $n = 0 ]; do sleep 0.05; done; sleep 0.5; exit $((40 + n))"},
                        stop);
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("was stopped and ended with status 41"));
}

// mpirun may kill only a rank's process, but not that process's children.
TEST_F(Script, EndsWithItsRank) {
  const testing::TemporaryDirectory folder;
  ProgramOptions kill;
  kill.signal_when_out_has = "up";
  kill.signal = SIGKILL;
  const ProgramResult result =
      test::run_program({SHOAL_SAGEMAKER_TRAIN, "rank", "sh", "-c",
                         fmt::format("echo $$ > {}; echo up; sleep 60; true", folder / "pid")},
                        kill);
  EXPECT_EQ(result.signal, SIGKILL);
  const pid_t pid = std::stoi(read_text_file(folder / "pid"));
  const auto runs = [&] {  // true until it ends; a zombie has ended
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    const std::size_t name_end = stat.rfind(") ");
    return name_end != std::string::npos && stat[name_end + 2] != 'Z';
  };
  for (int i = 0; i < 500 && runs(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(runs());
}

}  // namespace
}  // namespace shoal::sagemaker
