// Jobs of `shoal train` on two emulated hosts.
#include "sagemaker/container/cluster_job.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "apps/program.h"
#include "sagemaker/container/opt_ml.h"
#include "support/golden.h"
#include "support/source_tree.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/job/metric_definitions.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = OptMl::Json;

class ClusterJob : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new testing::TemporaryDirectory;
    const auto wikitext = testing::shared_data("wikitext2-valid.txt");
    text_ = new std::string(read_text_file(wikitext.value_or(testing::source_path("LICENSE"))));
    text_->resize(std::min(text_->size(), text_->find('\n', 60000)));
    std::ofstream(*shared_ / "text.txt") << *text_;
    const auto made = test::run_program({SHOAL_PROGRAM, "tokenizer", "train", "--vocab-size", "400",
                                         "-o", *shared_ / "tok", *shared_ / "text.txt"});
    ASSERT_EQ(made.status, 0) << made.err;
  }
  static void TearDownTestSuite() {
    delete shared_;
    delete text_;
    shared_ = nullptr;
    text_ = nullptr;
  }
  void SetUp() override {
    if (const std::string why = why_no_hosts(); !why.empty()) GTEST_SKIP() << why;
  }
  static Json hyperparameters(int steps, const Json& more = Json::object()) {
    Json all = {{"model_type", "\"gpt2\""},
                {"config_overrides", "\"n_layer=2,n_head=2,n_embd=32,n_positions=64\""},
                {"tokenizer_name", Json(*shared_ / "tok").dump()},
                {"block_size", "32"},
                {"max_steps", std::to_string(steps)},
                {"logging_steps", "1"},
                {"save_strategy", "\"no\""},
                {"eval_strategy", "\"no\""},
                {"do_eval", "true"},
                {"per_device_train_batch_size", "2"},
                {"use_cpu", "true"},
                {"sagemaker_distributed_dataparallel_enabled", "true"},
                {"sagemaker_region", "\"us-east-1\""}};
    for (const auto& [name, value] : more.items()) all[name] = value;
    return all;
  }
  static void expect_metrics_match(const std::string& out) {
    for (const auto& metric : default_metric_definitions()) {
      const auto name = metric["Name"].get<std::string>();
      if (name == "eval_f1" || name == "eval_exact_match" || name == "eval_accuracy") continue;
      std::smatch found;
      ASSERT_TRUE(std::regex_search(out, found, std::regex(metric["Regex"].get<std::string>())))
          << name << "\n"
          << out;
      EXPECT_NO_THROW(static_cast<void>(std::stod(found[1]))) << name;
    }
  }

  static inline testing::TemporaryDirectory* shared_ = nullptr;
  static inline std::string* text_ = nullptr;
};

// The tokenizer is in a Hugging Face cache, and only a variable of each host's container
// names its directory.
TEST_F(ClusterJob, TrainsOnTwoHostsAndSurvivesAnInterruption) {
  const std::string cached = *shared_ / "hub/models--shoal--tok";
  fs::create_directories(cached + "/refs");
  fs::create_directories(cached + "/snapshots");
  fs::copy(*shared_ / "tok", cached + "/snapshots/1", fs::copy_options::recursive);
  std::ofstream(cached + "/refs/main") << "1\n";
  const std::string cache = "HF_HOME=" + shared_->path();
  const Json named = {{"tokenizer_name", "\"shoal/tok\""}};

  // Enough steps that the signal arrives during training on any machine.
  Json run;
  std::unique_ptr<Job> broken;
  std::vector<HostEnd> stopped;
  for (int steps = 250; steps < 100000; steps *= 4) {
    run = hyperparameters(steps, named);
    broken = std::make_unique<Job>(run, *text_);
    stopped = broken->run({cache, "PLAY_WHEN='loss': ", "PLAY_TERM=yes"});
    if (stopped[0].status != "0") break;
  }
  for (const HostEnd& end : stopped) {
    EXPECT_EQ(end.status, "143") << end.said();
    EXPECT_EQ(end.failure, "");
  }
  EXPECT_FALSE(broken->has_model(0));
  broken->synchronize_checkpoints();
  const auto resumed = broken->run({cache});
  expect_ended_well(resumed);
  EXPECT_THAT(resumed[0].out, HasSubstr("resuming from "));

  Job unbroken(run, *text_);
  const auto whole = unbroken.run({cache});
  expect_ended_well(whole);
  EXPECT_THAT(whole[0].out, HasSubstr("host algo-1 of 2, master of mpirun"));
  EXPECT_THAT(whole[1].out, HasSubstr("host algo-2 of 2, worker of mpirun"));
  EXPECT_THAT(whole[0].out, HasSubstr("2 ranks"));
  expect_metrics_match(whole[0].out);
  EXPECT_TRUE(unbroken.has_model(0));
  EXPECT_FALSE(unbroken.has_model(1));
  EXPECT_EQ(broken->model(), unbroken.model());
  EXPECT_EQ(broken->losses(), unbroken.losses());
}

TEST_F(ClusterJob, SaysOnBothHostsWhyItFailed) {
  Job job(hyperparameters(100000), *text_);
  const auto ends = job.run({"PLAY_WHEN='loss': ", "PLAY_KILL=shoal"});
  for (const HostEnd& end : ends) {
    EXPECT_NE(end.status, "0") << end.said();
    EXPECT_NE(end.status, "") << end.said();
    EXPECT_THAT(end.failure, HasSubstr("algo-2")) << end.said();
  }
  EXPECT_THAT(ends[1].failure, HasSubstr("host algo-1: "));
  EXPECT_FALSE(job.has_model(0));
}

TEST_F(ClusterJob, NamesTheHostThatNeverCame) {
  Job job(hyperparameters(2), *text_);
  const auto ends = job.run({"PLAY_ABSENT=2"}, {"--connect-seconds", "1"});
  EXPECT_EQ(ends[0].status, "5") << ends[0].said();
  EXPECT_THAT(ends[0].failure, HasSubstr("host algo-2 does not serve ssh on port 22 after 1 s"));
}

bool is_full() { return std::getenv("SHOAL_TEST_FULL") != nullptr; }

// The step from which a start resumed; 0: it started from the beginning.
std::int64_t first_step(const std::vector<HostEnd>& ends) {
  std::smatch found;
  return std::regex_search(ends[0].out, found, std::regex("resuming from \\S+ at step (\\d+)"))
             ? std::stoll(found[1])
             : 0;
}

// Settings of play_host: act when this start has logged this many steps, and `seconds` later.
std::vector<std::string> after_steps(std::int64_t steps, double seconds) {
  return {"PLAY_WHEN='loss': ", fmt::format("PLAY_TIMES={}", steps),
          fmt::format("PLAY_AFTER={:.3f}", seconds)};
}

// Interruptions of one job, on both hosts. Each moment is drawn in steps, from the remaining ones,
// so all fall within training on any machine. Some interruptions come before the ranks exist.
TEST_F(ClusterJob, SurvivesTwentyInterruptions) {
  if (!is_full()) GTEST_SKIP() << "./dev test --full runs it";
  constexpr int kInterruptions = 20;
  constexpr std::int64_t kSteps = 3000;
  const Json run = hyperparameters(kSteps);
  Job unbroken(run, *text_), broken(run, *text_);
  expect_ended_well(unbroken.run());
  std::mt19937 random(7);
  std::uniform_real_distribution<double> second(0, 1);
  int within = 0, resumed = 0;
  std::int64_t step = 0;
  const auto interrupt = [&](std::vector<std::string> play) {
    play.emplace_back("PLAY_TERM=yes");
    const auto ends = broken.run(play);
    for (const HostEnd& end : ends) {
      EXPECT_EQ(end.status, "143") << end.said();
      EXPECT_EQ(end.failure, "") << end.said();
    }
    broken.synchronize_checkpoints();
    return ends;
  };
  for (int i = 1; i <= kInterruptions && !HasFailure(); ++i) {
    // At most half of an even share, because steps continue until the signal takes effect.
    const std::int64_t most = std::max<std::int64_t>(1, (kSteps - step) / (kInterruptions + 1 - i));
    const auto steps = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
    const auto ends = interrupt(after_steps(steps, 0.1 * second(random)));
    const std::int64_t from = first_step(ends), to = broken.newest_step();
    fmt::print("interruption {} after {} steps: from step {} to {}\n", i, steps, from, to);
    EXPECT_EQ(from, step);
    if (from > 0) ++resumed;
    if (to >= from + steps && to < kSteps) ++within;
    step = to;
    if (i % 5 != 0) continue;
    interrupt({"PLAY_WHEN=train: host ", fmt::format("PLAY_AFTER={:.3f}", second(random))});
    fmt::print("and one on the way there: step {}\n", broken.newest_step());
    step = broken.newest_step();
  }
  const auto last = broken.run();
  expect_ended_well(last);
  EXPECT_EQ(first_step(last), step);
  fmt::print("{} of {} within training, {} starts resumed\n", within, kInterruptions,
             resumed + (first_step(last) > 0 ? 1 : 0));
  EXPECT_EQ(within, kInterruptions);
  EXPECT_EQ(resumed, kInterruptions - 1);  // all but the first
  EXPECT_EQ(broken.model(), unbroken.model());
  EXPECT_EQ(broken.losses(), unbroken.losses());
}

// A model in parts, where each host's part is on its own disk. A host is killed during training,
// and files that were not yet in S3 are lost with it.
TEST_F(ClusterJob, SurvivesLostHostsAndFiles) {
  if (!is_full()) GTEST_SKIP() << "./dev test --full runs it";
  constexpr int kLost = 8;
  const Json run = hyperparameters(
      1100, {{"sagemaker_distributed_dataparallel_enabled", "false"},
             {"sagemaker_mpi_enabled", "true"},
             {"mp_parameters", R"({"sharded_data_parallel_degree": 2, "ddp": true})"},
             {"save_strategy", "\"steps\""},
             {"save_steps", "20"},
             {"save_total_limit", "3"}});
  Job unbroken(run, *text_), broken(run, *text_);
  expect_ended_well(unbroken.run());
  std::mt19937 random(3);
  int passed_over = 0, resumed = 0;
  for (int i = 1; i <= kLost && !HasFailure(); ++i) {
    // At least two whole checkpoints, one of which may be lost, and one that is being written.
    const auto steps = 65 + static_cast<std::int64_t>(random() % 26);
    auto play = after_steps(steps, 0);
    play.emplace_back("PLAY_KILL=host");
    const auto ends = broken.run(play);
    fmt::print("lost host {} after {} steps: statuses {} and {}, from step {} to {}\n", i, steps,
               ends[0].status, ends[1].status, first_step(ends), broken.newest_step());
    EXPECT_EQ(ends[1].status, "killed") << ends[1].said();
    EXPECT_NE(ends[0].status, "0") << ends[0].said();
    EXPECT_NE(ends[0].failure, "") << ends[0].said();
    if (ends[0].out.find("is passed over: ") != std::string::npos) ++passed_over;
    if (first_step(ends) > 0) ++resumed;
    broken.synchronize_checkpoints(&random);
  }
  const auto last = broken.run();
  expect_ended_well(last);
  EXPECT_GT(first_step(last), 0);
  fmt::print("{} of {} starts after a loss resumed, {} passed a checkpoint over\n", resumed + 1,
             kLost, passed_over);
  EXPECT_GE(passed_over, 1);
  EXPECT_GE(resumed, kLost - 3);
  EXPECT_EQ(broken.model(), unbroken.model());
}

}  // namespace
}  // namespace shoal::sagemaker
