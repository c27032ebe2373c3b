// `shoal train` with several ranks on emulated GPUs: the binary's own code over the emulated
// runtime and kernels, with ranks as processes. Losses and weights are compared with those of one
// rank on the CPU.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "apps/shoal_fixture.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/safetensors.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Not;

constexpr int kSteps = 4;

class GpuRanks : public Shoal {
 protected:
  static void SetUpTestSuite() {
    Shoal::SetUpTestSuite();
    reference_ = new testing::TemporaryDirectory;
    const auto trained = shoal(words(1, *reference_ / "out", {"--use_cpu", "true"}));
    ASSERT_EQ(trained.status, 0) << trained.err;
  }
  static void TearDownTestSuite() {
    delete reference_;
    reference_ = nullptr;
    Shoal::TearDownTestSuite();
  }

  // Four samples a step for any number of ranks. `more` overrides the other options.
  static std::vector<std::string> words(int replicas, const std::string& output,
                                        const std::vector<std::string>& more = {}) {
    return overlaid({"train",
                     "--model_type",
                     "gpt2",
                     "--config_overrides",
                     "n_layer=2,n_head=2,n_embd=32,n_positions=32",
                     "--tokenizer_name",
                     *data_ / "tok",
                     "--train_file",
                     *data_ / "train.txt",
                     "--block_size",
                     "24",
                     "--learning_rate",
                     "3e-3",
                     "--adam_epsilon",
                     "1e-4",  // avoids updates from rounding where a gradient is zero (key biases)
                     "--max_steps",
                     std::to_string(kSteps),
                     "--logging_steps",
                     "1",
                     "--save_steps",
                     "2",
                     "--per_device_train_batch_size",
                     std::to_string(4 / replicas),
                     "--output_dir",
                     output},
                    more);
  }

  struct Machine {
    int gpus = 2;                             // on each rank's host
    std::vector<std::string> of_rank_1 = {};  // additions to rank 1's environment
    ProgramOptions options = {};
  };
  static std::vector<ProgramResult> run(int ranks, std::vector<std::string> words,
                                        const Machine& machine) {
    const testing::TemporaryDirectory store;
    std::vector<std::vector<std::string>> environments;
    for (int rank = 0; rank < ranks; ++rank) {
      environments.push_back({fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank),
                              fmt::format("WORLD_SIZE={}", ranks),
                              fmt::format("LOCAL_WORLD_SIZE={}", ranks), "MASTER_ADDR=127.0.0.1",
                              "MASTER_PORT=1", "SHOAL_STORE_DIR=" + store.path(), "SHOAL_THREADS=1",
                              "SHOAL_LOG=error", "SHOAL_EMULATED_GPU_CONTEXTS=1",
                              fmt::format("SHOAL_EMULATED_GPUS={}", machine.gpus)});
      if (rank == 1)
        for (const std::string& entry : machine.of_rank_1) environments.back().push_back(entry);
    }
    words.insert(words.begin(), SHOAL_PROGRAM);
    return test::run_programs(words, environments, machine.options);
  }
  // Returns rank 0's output. All ranks must succeed.
  std::string train_on(int ranks, const std::vector<std::string>& words,
                       const Machine& machine) const {
    const auto results = run(ranks, words, machine);
    for (const ProgramResult& result : results)
      EXPECT_EQ(result.status, 0) << result.err << result.out << " signal " << result.signal;
    return results[0].out + results[0].err;
  }
  std::string train_on(int ranks, const std::vector<std::string>& words) const {
    return train_on(ranks, words, Machine{});
  }

  static std::vector<double> losses(const std::string& output) {
    std::vector<double> all;
    std::ifstream file(output + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (const auto record = nlohmann::json::parse(line); record.contains("loss"))
        all.push_back(record["loss"]);
    return all;
  }
  static void expect_as_on_one_cpu(const std::string& output) {
    const std::vector<double> have = losses(output), want = losses(*reference_ / "out");
    ASSERT_EQ(want.size(), static_cast<std::size_t>(kSteps));
    ASSERT_EQ(have.size(), want.size());
    for (std::size_t step = 0; step < want.size(); ++step)
      EXPECT_NEAR(have[step], want[step], 2e-5 * want[step]) << "step " << step;
    EXPECT_LT(want.back(), want.front());
    expect_weights_as_on_one_cpu(output);
  }
  // Compares all weights together, by relative error.
  static void expect_weights_as_on_one_cpu(const std::string& output) {
    const auto have = SafetensorsFile::open(output + "/model.safetensors");
    const auto want = SafetensorsFile::open(*reference_ / "out/model.safetensors");
    ASSERT_EQ(have->entries().size(), want->entries().size());
    double difference = 0, size = 0;
    for (const SafetensorsEntry& entry : want->entries()) {
      const std::string& name = entry.name;
      const Tensor a = have->tensor(name), b = want->tensor(name);
      ASSERT_EQ(a.shape(), b.shape()) << name;
      for (std::int64_t i = 0; i < a.count(); ++i) {
        const auto x = static_cast<double>(a.const_data<float>()[i]);
        const auto y = static_cast<double>(b.const_data<float>()[i]);
        difference += (x - y) * (x - y);
        size += y * y;
      }
    }
    EXPECT_LT(std::sqrt(difference / size), 1e-4);
  }

  static inline testing::TemporaryDirectory* reference_ = nullptr;
};

TEST_F(GpuRanks, TwoWithAGpuEachTrainLikeOneRank) {
  const std::string said = train_on(2, words(2, out()));
  EXPECT_THAT(said,
              AllOf(HasSubstr("layout: 2 data-parallel ranks (native over CUDA IPC)"),
                    HasSubstr("device: cuda:0 (local rank 0, 2 GPUs visible)"),
                    HasSubstr("devices: 2 ranks on 2 GPUs of 1 host"),
                    HasSubstr("rank 0 cuda:0, rank 1 cuda:1"), Not(HasSubstr("ranks share"))));
  expect_as_on_one_cpu(out());
}

// Some launchers show each rank only its own GPU, as the first one.
TEST_F(GpuRanks, EachMaySeeOnlyItsOwnGpu) {
  Machine machine;
  machine.of_rank_1 = {"CUDA_VISIBLE_DEVICES=1"};
  const std::string said = train_on(2, words(2, out(), {"--max_steps", "1"}), machine);
  EXPECT_THAT(said,
              AllOf(HasSubstr("native over CUDA IPC"), HasSubstr("2 ranks on 2 GPUs"),
                    HasSubstr("rank 0 cuda:0, rank 1 cuda:0"), Not(HasSubstr("ranks share"))));
}

TEST_F(GpuRanks, FourOnTwoGpusTrainLikeOneRank) {
  const std::string said = train_on(4, words(4, out()));
  EXPECT_THAT(said, AllOf(HasSubstr("devices: 4 ranks on 2 GPUs of 1 host"),
                          HasSubstr("4 ranks share 2 GPUs"),
                          HasSubstr("cuda:0's memory, shared by 2 ranks")));
  expect_as_on_one_cpu(out());
}

TEST_F(GpuRanks, AccumulateAndEvaluateLikeOneRank) {
  const std::string said = train_on(
      2, words(4, out(),
               {"--gradient_accumulation_steps", "2", "--validation_file",
                *data_ / "validation.txt", "--eval_strategy", "steps", "--eval_steps", "4"}));
  EXPECT_THAT(said, HasSubstr("'eval_loss': "));
  expect_as_on_one_cpu(out());
}

TEST_F(GpuRanks, TwoPipelineStagesTrainLikeOneRank) {
  train_on(2, words(1, out(), {"--mp_parameters", R"({"pipeline_parallel_degree": 2,
      "microbatches": 2, "skip_tracing": true})"}));
  expect_as_on_one_cpu(out());
}

TEST_F(GpuRanks, ShardedGradientsTrainLikeOneRank) {
  train_on(2, words(2, out(),
                    {"--mp_parameters", R"({"ddp": true, "sharding_strategy": "SHARD_GRAD_OP"})"}));
  expect_as_on_one_cpu(out());
}

TEST_F(GpuRanks, TwoTensorParallelRanksTrainLikeOneRank) {
  train_on(2, words(1, out(), {"--mp_parameters", R"({"tensor_parallel_degree": 2, "ddp": true,
      "prescaled_batch": true})"}));
  expect_as_on_one_cpu(out());
}

// One log record covers all steps and is read after the last one.
TEST_F(GpuRanks, StepsWithoutAWaitTrainLikeOneRank) {
  const std::vector<double> want = losses(*reference_ / "out");
  double mean = 0;
  for (const double loss : want) mean += loss / kSteps;
  struct Case {
    int replicas;
    std::string mesh;
  };
  for (const Case& c :
       {Case{2, ""}, Case{1, R"({"pipeline_parallel_degree": 2, "microbatches": 2,
                                 "skip_tracing": true})"},
        Case{1, R"({"tensor_parallel_degree": 2, "ddp": true, "prescaled_batch": true})"}}) {
    std::vector<std::string> more = {"--logging_steps",        std::to_string(kSteps),
                                     "--save_steps",           std::to_string(kSteps),
                                     "--overwrite_output_dir", "true"};
    if (!c.mesh.empty()) more.insert(more.end(), {"--mp_parameters", c.mesh});
    train_on(2, words(c.replicas, out(), more));
    ASSERT_EQ(losses(out()).size(), 1U);
    EXPECT_NEAR(losses(out())[0], mean, 2e-5 * mean) << c.mesh;
    expect_weights_as_on_one_cpu(out());
  }
}

TEST_F(GpuRanks, ResumeFromACheckpointOfCpus) {
  fs::create_directories(out());
  fs::copy(*reference_ / "out/checkpoint-2", out() + "/checkpoint-2", fs::copy_options::recursive);
  const std::string said = train_on(2, words(2, out(), {"--resume_from_checkpoint", "true"}));
  EXPECT_THAT(said, HasSubstr("resuming from " + out() + "/checkpoint-2 at step 2"));
  expect_weights_as_on_one_cpu(out());
}

TEST_F(GpuRanks, WriteACheckpointForCpus) {
  train_on(2, words(2, out()));
  fs::remove_all(out() + "/checkpoint-4");
  const auto rest =
      shoal(words(1, out(), {"--resume_from_checkpoint", "true", "--use_cpu", "true"}));
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("at step 2"));
  expect_weights_as_on_one_cpu(out());
}

TEST_F(GpuRanks, AKilledRankIsNamed) {
  const auto results = run(2, words(2, out(), {"--max_steps", "100000", "--save_steps", "100000"}),
                           {.options = {.signal_when_out_has = "'loss'", .signal = SIGKILL}});
  EXPECT_EQ(results[0].signal, SIGKILL);  // the rank that prints
  EXPECT_EQ(results[1].status, 5) << results[1].signal << results[1].err;
  EXPECT_THAT(results[1].err, HasSubstr("rank 0"));
}

TEST_F(GpuRanks, ARankWithoutAGpuIsNamed) {
  const auto results = run(2, words(2, out()), {.of_rank_1 = {"SHOAL_EMULATED_GPUS=0"}});
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("rank 0 has a GPU on "),
                                    HasSubstr("rank 1 has no GPU on "), HasSubstr("--use_cpu")));
  expect_refused(results[0], "all ranks train on GPUs or none does");
  EXPECT_EQ(results[1].status, results[0].status);
  EXPECT_EQ(results[1].err, "");
}

TEST_F(GpuRanks, CallsThatNcclCannotMakeAreRefused) {
  expect_refused(
      run(2,
          words(1, out(),
                {"--ddp_backend", "nccl", "--mp_parameters", R"({"pipeline_parallel_degree": 2})"}),
          {})[0],
      "cannot carry the messages between the 2 stages");
}

// A rank's own limit: one line names the request and the memory in use.
TEST_F(GpuRanks, ReportExhaustedMemoryInOneLine) {
  const auto results = run(2, words(2, out(), {"--memory_limit_mb", "0.6"}), {.gpus = 1});
  EXPECT_EQ(results[0].status, 4);
  const std::string said = results[0].err + results[1].err;
  EXPECT_THAT(said, AllOf(HasSubstr("no room for"), HasSubstr("memory_limit_mb"),
                          HasSubstr("parameters ")));
}

TEST_F(GpuRanks, FindABatchThatFitsOnEveryGpu) {
  const std::string said =
      train_on(2,
               words(1, out(),
                     {"--auto_find_batch_size", "true", "--per_device_train_batch_size", "28",
                      "--memory_limit_mb", "4", "--max_steps", "1"}),
               {.gpus = 1});
  EXPECT_THAT(said, AllOf(HasSubstr("samples a device do not fit"),
                          HasSubstr("per_device_train_batch_size is ")));
}

TEST_F(GpuRanks, TheDoctorFindsThem) {
  ProgramOptions two;
  two.environment = {"SHOAL_EMULATED_GPUS=2"};
  EXPECT_THAT(shoal({"doctor", "--need", "GPU"}, two).out,
              AllOf(HasSubstr("2 x "), HasSubstr("one for each rank of a host")));
}

}  // namespace
}  // namespace shoal
