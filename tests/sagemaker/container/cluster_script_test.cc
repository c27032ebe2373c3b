// Jobs of a Python script on two emulated hosts with two ranks each.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "apps/program.h"
#include "sagemaker/container/cluster_job.h"
#include "support/source_tree.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"

#ifndef SHOAL_TORCH_PYTHON  // built without PyTorch's backend
#define SHOAL_TORCH_PYTHON "python3"
#define SHOAL_TORCH_PATH ""
#endif

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = OptMl::Json;

std::string variable_or(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

// The code archive as SageMaker provides it to a job without a network, and two ranks a host.
Json script_job(const std::string& program, const Json& more) {
  Json all = {{"sagemaker_program", Json(program).dump()},
              {"sagemaker_submit_directory", "\"/opt/ml/input/data/code/sourcedir.tar.gz\""},
              {"sagemaker_mpi_num_of_processes_per_host", "2"}};
  all.update(more);
  return all;
}

// The hyperparameters with which SageMaker turns on smdistributed's dataparallel.
Json data_parallel(Json more = Json::object()) {
  more["sagemaker_distributed_dataparallel_enabled"] = "true";
  return more;
}

class ClusterScript : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_hosts(); !why.empty()) GTEST_SKIP() << why;
  }
  static std::vector<HostEnd> run(
      Job& job, std::vector<std::string> play = {}, const std::string& python = "python3",
      const std::string& code = testing::source_path("tests/sagemaker/container/scripts"),
      int seconds = 150) {
    for (const std::size_t host : {0U, 1U}) {
      const std::string channel = job.host(host).path("input/data/code");
      fs::create_directories(channel);
      const auto packed =
          test::run_program({"tar", "-czf", channel + "/sourcedir.tar.gz", "-C", code, "."});
      EXPECT_EQ(packed.status, 0) << packed.err;
    }
    play.emplace_back("PYTHONDONTWRITEBYTECODE=1");
    return job.run(std::move(play), {"--python", python}, seconds);
  }
};

class PlainScript : public ClusterScript {
 protected:
  void SetUp() override {
    if (std::system("command -v python3 > /dev/null") != 0)
      GTEST_SKIP() << "python3 is not installed";
    ClusterScript::SetUp();
  }
};

TEST_F(PlainScript, RunsOnAllRanks) {
  Job job(script_job("ranks.py", data_parallel({{"epochs", "2"}})));
  const auto ends = run(job);
  expect_ended_well(ends);
  EXPECT_THAT(ends[0].out, HasSubstr("host algo-1 of 2, master of mpirun"));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::string host = rank < 2 ? "algo-1" : "algo-2";
    const Json got = Json::parse(
        read_text_file(job.host(rank / 2U).path(fmt::format("output/data/rank-{}.json", rank))));
    EXPECT_THAT(got["arguments"], ElementsAre("--epochs", "2"));
    EXPECT_EQ(got["directory"], job.path("ml/code"));
    EXPECT_EQ(got["host"], host);
    const Json all = {0, 1, 2, 3};
    EXPECT_EQ(got["met"], rank == 0 ? all : Json::array());
    const Json& variables = got["variables"];
    EXPECT_EQ(variables["LOCAL_RANK"], std::to_string(rank % 2));
    EXPECT_EQ(variables["WORLD_SIZE"], "4");
    EXPECT_EQ(variables["LOCAL_WORLD_SIZE"], "2");
    EXPECT_EQ(variables["MASTER_ADDR"], "algo-1");
    EXPECT_EQ(variables["SM_HP_EPOCHS"], "2");
    EXPECT_EQ(variables["ACCELERATE_TORCH_DEVICE"], "cpu");
    EXPECT_EQ(variables["PYTHONPATH"], job.path("ml/code"));
  }
}

TEST_F(PlainScript, SaysOnBothHostsWhyItFailed) {
  Job job(script_job("ranks.py", data_parallel({{"mode", "\"fail\""}})));
  for (const HostEnd& end : run(job)) {
    EXPECT_EQ(end.status, "1") << end.said();
    EXPECT_THAT(end.failure,
                HasSubstr("ranks.py, rank 3 (exit status 1): ValueError: rank 3 has\nno answer\n"));
    EXPECT_THAT(end.failure, HasSubstr("in answer\n"));
  }
}

TEST_F(PlainScript, SavesOnAllRanksWhenItIsStopped) {
  Job job(script_job("ranks.py", data_parallel({{"mode", "\"stop\""}})));
  for (const HostEnd& end : run(job, {"PLAY_WHEN=ready", "PLAY_TIMES=4", "PLAY_TERM=yes"})) {
    EXPECT_EQ(end.status, "143") << end.said();
    EXPECT_EQ(end.failure, "");
  }
  for (std::size_t rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(fs::exists(job.host(rank / 2U).path(fmt::format("output/data/saved-{}", rank))))
        << rank;
}

// Scripts that use PyTorch with Shoal's backend.
class TorchScript : public ClusterScript {
 protected:
  void SetUp() override {
    ClusterScript::SetUp();
    const auto tried = test::run_program(
        {python_, "-c", "import torch, smdistributed.dataparallel.torch.torch_smddp"},
        {.environment = {"PYTHONPATH=" + path_}, .seconds = 300});
    if (tried.status != 0)
      GTEST_SKIP() << python_
                   << " has no PyTorch with Shoal's backend; set SHOAL_TEST_TORCH_PYTHON, "
                   << "and SHOAL_TEST_TORCH_PATH for a build's modules:\n"
                   << tried.err;
  }
  // Runs a script of this folder, which compares its model with that of one process.
  void expect_trains(const std::string& script, Json hyperparameters) {
    hyperparameters.update({{"learning_rate", "0.1"}, {"max_steps", "5"}});
    Job job(script_job(script, hyperparameters));
    const auto ends = run(job, {"PYTHONPATH=" + path_}, python_);
    expect_ended_well(ends);
    EXPECT_THAT(ends[0].out, HasSubstr("{'loss': "));
    EXPECT_TRUE(fs::exists(job.host(0).path("model/model.pt")));
  }
  // Runs one of Hugging Face's scripts, unmodified, and compares it with its run
  // outside a container.
  void expect_trains_as_alone(const std::string& script) {
    const testing::TemporaryDirectory folder;
    const auto helper = [&](const std::string& verb, std::vector<std::string> more) {
      std::vector<std::string> words = {
          python_, "-B", testing::source_path("tests/torch/container_job.py"), verb, script};
      more.insert(more.begin(), folder.path());
      words.insert(words.end(), more.begin(), more.end());
      return test::run_program(words, {.environment = {"PYTHONPATH=" + path_}, .seconds = 600});
    };
    const auto made = helper("make", {});
    if (made.status == 77) GTEST_SKIP() << made.out;
    ASSERT_EQ(made.status, 0) << made.out << made.err;
    Job job(script_job(fs::path(script).filename(), Json::parse(made.out)));
    const auto ends = run(job,
                          {"PYTHONPATH=" + path_, "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1",
                           "HF_HOME=" + folder / "hub"},
                          python_, folder / "code", 600);
    expect_ended_well(ends);
    const auto compared = helper("compare", {job.host(0).path("model")});
    EXPECT_EQ(compared.status, 0) << compared.out << compared.err;
    std::cout << compared.out;
  }

  const std::string python_ = variable_or("SHOAL_TEST_TORCH_PYTHON", SHOAL_TORCH_PYTHON);
  const std::string path_ = variable_or("SHOAL_TEST_TORCH_PATH", SHOAL_TORCH_PATH);
};

// These are the Estimator's distribution {"smdistributed": {"modelparallel": ...}, "mpi": ...}.
TEST_F(TorchScript, CutsAModel) {
  const Json parameters = {
      {"partitions", 2}, {"microbatches", 4}, {"placement_strategy", "spread"}, {"ddp", true}};
  expect_trains("smp.py",
                {{"mp_parameters", parameters.dump()}, {"sagemaker_mpi_enabled", "true"}});
}

TEST_F(TorchScript, TrainsWithDistributedDataParallel) { expect_trains("ddp.py", data_parallel()); }

TEST_F(TorchScript, QuestionAnsweringIsAsOnGloo) {
  expect_trains_as_alone("question-answering/run_qa.py");
}

TEST_F(TorchScript, AModelThatIsCutIsAsInOneProcess) {
  expect_trains_as_alone("text-classification/run_glue.py");
}

}  // namespace
}  // namespace shoal::sagemaker
