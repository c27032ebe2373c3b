// A job on two hosts of the emulated cluster (bench/cluster/emulate), from nothing but /opt/ml:
// each host is a network namespace with an address, a disk and processes of its own, `train` is its
// process 1, and mpirun reaches the second through sshd. play_host does what SageMaker does.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "apps/program.h"
#include "sagemaker/container/opt_ml.h"
#include "support/golden.h"
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

constexpr const char* kSshd = "/usr/sbin/sshd";

struct HostEnd {
  std::string status, out, err, failure;  // failure: empty where there is none
  std::string said() const { return fmt::format("status {}\n{}\n{}", status, out, err); }
};

// Two hosts' /opt/ml, and what becomes of them.
class Job {
 public:
  explicit Job(const Json& hyperparameters, const std::string& text) {
    fs::create_directories(folder_ / "ml");
    fs::create_directories(folder_ / "bin");
    for (const char* name : {"algo-1", "algo-2"}) {
      hosts_.push_back(std::make_unique<OptMl>(std::vector<std::string>{"algo-1", "algo-2"}, name,
                                               "ml.m5.xlarge", folder_ / name + "/ml", "eth0"));
      hosts_.back()->hyperparameters(hyperparameters);
      hosts_.back()->inputs({{"train", {{"TrainingInputMode", "File"}}},
                             {"validation", {{"TrainingInputMode", "File"}}}});
      hosts_.back()->write("input/data/train/text.txt", text);
      hosts_.back()->write("input/data/validation/text.txt", text.substr(0, 4000));
    }
    std::ofstream(folder_ / "bin/sshd") << "";  // each host's own is mounted here
  }

  // The hosts from their start to the end of both; `play`: NAME=value of play_host.
  std::vector<HostEnd> run(std::vector<std::string> play = {},
                           const std::vector<std::string>& words = {}) {
    fs::remove(folder_ / "term");
    for (const char* name : {"algo-1", "algo-2"})
      for (const char* old : {".status", "/ml/output/failure"}) fs::remove(folder_ / name + old);
    const std::string source = SHOAL_SOURCE_DIR;
    // Ended by SIGTERM, emulate clears away what it made.
    std::vector<std::string> all = {"timeout",
                                    "150",
                                    source + "/bench/cluster/emulate",
                                    "--hosts",
                                    "2",
                                    "--ranks-per-host",
                                    "1",
                                    "--launcher",
                                    "plain",
                                    "--",
                                    source + "/tests/sagemaker/container/play_host",
                                    folder_.path(),
                                    SHOAL_SAGEMAKER_TRAIN,
                                    "--prefix",
                                    folder_ / "ml",
                                    "--shoal",
                                    SHOAL_PROGRAM,
                                    "--sshd",
                                    folder_ / "bin/sshd",
                                    "--poll-seconds",
                                    "0.05",
                                    "--quiet-seconds",
                                    "3"};
    all.insert(all.end(), words.begin(), words.end());
    for (const char* variable : {"SHOAL_THREADS=1", "GOMP_SPINCOUNT=10000",
                                 "TRAINING_JOB_NAME=two-hosts", "SHOAL_DEADLINE_S=60"})
      play.emplace_back(variable);
    const auto played = test::run_program(all, {.environment = play, .seconds = 170});
    EXPECT_NE(played.status, 124) << "the hosts did not end";
    return {end_of(0), end_of(1)};
  }

  // Between an interruption and the next start: each host's checkpoints went to one place in S3,
  // and all of what is there comes to each. `lose`: of which files it never got all.
  void synchronize_checkpoints(std::mt19937* lose = nullptr) {
    if (lose != nullptr) lose_something(*lose);
    const auto all = fs::copy_options::recursive | fs::copy_options::skip_existing;
    for (const auto& [from, to] : {std::pair{0, 1}, {1, 0}}) {
      const std::string folder = hosts_[static_cast<std::size_t>(from)]->path("checkpoints");
      if (fs::exists(folder))
        fs::copy(folder, hosts_[static_cast<std::size_t>(to)]->path("checkpoints"), all);
    }
  }
  bool has_model(std::size_t host) const {
    return fs::exists(hosts_[host]->path("model/model.safetensors"));
  }
  std::string model() const { return read_text_file(hosts_[0]->path("model/model.safetensors")); }
  // The training losses and the last evaluation of all starts of the job.
  std::string losses() const {
    std::istringstream lines(read_text_file(hosts_[0]->path("checkpoints/metrics.jsonl")));
    std::map<std::int64_t, std::string> of_step;
    std::string last;
    for (std::string line; std::getline(lines, line);) {
      const Json record = Json::parse(line);
      if (record.contains("loss")) of_step[record["step"]] = record["loss"].dump();
      if (record.contains("eval_loss")) last = record["eval_loss"].dump();
    }
    std::string text;
    for (const auto& [step, loss] : of_step) text += fmt::format("{} {}\n", step, loss);
    return text + last;
  }

 private:
  // A file of one host's newest checkpoint, or its end.
  void lose_something(std::mt19937& random) {
    const fs::path checkpoints = hosts_[random() % 2]->path("checkpoints");
    std::map<long, std::vector<fs::path>> files;
    if (!fs::exists(checkpoints)) return;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoints))
      if (const std::string folder = entry.path().parent_path().filename();
          entry.is_regular_file() && folder.starts_with("checkpoint-"))
        files[std::stol(folder.substr(11))].push_back(entry.path());
    if (files.empty()) return;
    auto& newest = files.rbegin()->second;
    std::ranges::sort(newest);
    const fs::path lost = newest[random() % newest.size()];
    if (random() % 2 == 0)
      fs::remove(lost);
    else
      fs::resize_file(lost, random() % (fs::file_size(lost) + 1));
  }
  std::string left(const std::string& name) const {
    std::error_code ignored;
    return fs::exists(folder_ / name, ignored) ? read_text_file(folder_ / name) : std::string();
  }
  HostEnd end_of(std::size_t host) const {
    const std::string name = fmt::format("algo-{}", host + 1);
    HostEnd end{left(name + ".status"), left(name + ".out"), left(name + ".err"),
                left(name + "/ml/output/failure")};
    if (end.status.ends_with('\n')) end.status.pop_back();
    return end;
  }

  testing::TemporaryDirectory folder_;
  std::vector<std::unique_ptr<OptMl>> hosts_;
};

class ClusterJob : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new testing::TemporaryDirectory;
    const auto wikitext = testing::shared_data("wikitext2-valid.txt");
    text_ = new std::string(
        read_text_file(wikitext.value_or(std::string(SHOAL_SOURCE_DIR) + "/LICENSE")));
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
    if (!fs::exists(kSshd)) GTEST_SKIP() << "no sshd; install openssh-server";
    for (const char* program : {"mpirun", "ssh", "nsenter"})
      if (std::system(fmt::format("command -v {} > /dev/null", program).c_str()) != 0)
        GTEST_SKIP() << "no " << program;
    const auto tried = test::run_program(
        {"bash", "-c",
         "n=shoal-probe-$$; ip netns add $n && ip -n $n link add v0 type veth peer name v1 && "
         "ip netns exec $n unshare --mount --uts --pid --fork --mount-proc "
         "tc qdisc add dev v0 root tbf rate 1gbit burst 512kb latency 100ms; "
         "s=$?; ip netns del $n; exit $s"});
    if (tried.status != 0) GTEST_SKIP() << "needs root and network namespaces: " << tried.err;
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
  static void expect_ended_well(const std::vector<HostEnd>& ends) {
    for (const HostEnd& end : ends) {
      EXPECT_EQ(end.status, "0") << end.said();
      EXPECT_EQ(end.failure, "");
    }
  }

  static inline testing::TemporaryDirectory* shared_ = nullptr;
  static inline std::string* text_ = nullptr;
};

TEST_F(ClusterJob, TrainsOnTwoHostsAndSurvivesAnInterruption) {
  // A second of training, so that the signal finds it: a step takes 4 ms where nothing is beside.
  const Json run = hyperparameters(250);
  Job unbroken(run, *text_), broken(run, *text_);
  const auto whole = unbroken.run();
  expect_ended_well(whole);
  EXPECT_THAT(whole[0].out, HasSubstr("host algo-1 of 2, master of mpirun"));
  EXPECT_THAT(whole[1].out, HasSubstr("host algo-2 of 2, worker of mpirun"));
  EXPECT_THAT(whole[0].out, HasSubstr("2 ranks"));
  expect_metrics_match(whole[0].out);
  EXPECT_TRUE(unbroken.has_model(0));
  EXPECT_FALSE(unbroken.has_model(1));

  const auto stopped = broken.run({"PLAY_TERM_WHEN='loss': "});
  for (const HostEnd& end : stopped) {
    EXPECT_EQ(end.status, "143") << end.said();
    EXPECT_EQ(end.failure, "");
  }
  EXPECT_FALSE(broken.has_model(0));
  broken.synchronize_checkpoints();
  const auto resumed = broken.run();
  expect_ended_well(resumed);
  EXPECT_THAT(resumed[0].out, HasSubstr("resuming from "));
  EXPECT_EQ(broken.model(), unbroken.model());
  EXPECT_EQ(broken.losses(), unbroken.losses());
}

TEST_F(ClusterJob, SaysOnBothHostsWhyItFailed) {
  Job job(hyperparameters(100000), *text_);
  const auto ends = job.run({"PLAY_KILL_WHEN='loss': ", "PLAY_KILL=shoal"});
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
  EXPECT_EQ(ends[0].status, "1") << ends[0].said();
  EXPECT_THAT(ends[0].failure, HasSubstr("host algo-2 does not serve ssh on port 22 after 1 s"));
}

bool is_full() { return std::getenv("SHOAL_TEST_FULL") != nullptr; }

// What `ends` began with, and how they ended.
std::string told(const std::vector<HostEnd>& ends) {
  const auto at = ends[0].out.find("resuming from ");
  return fmt::format("statuses {} and {}, {}", ends[0].status, ends[1].status,
                     at == std::string::npos
                         ? "from the beginning"
                         : ends[0].out.substr(at, ends[0].out.find('\n', at) - at));
}

// Of one job, on both hosts, at moments drawn from a seed.
TEST_F(ClusterJob, SurvivesTwentyInterruptions) {
  if (!is_full()) GTEST_SKIP() << "./dev test --full runs it";
  const Json run = hyperparameters(1500, {{"logging_steps", "10"}});
  Job unbroken(run, *text_), broken(run, *text_);
  expect_ended_well(unbroken.run());
  std::mt19937 random(7);
  std::uniform_real_distribution<double> moment(0, 6);
  int interrupted = 0;
  for (int i = 0; i < 20; ++i) {
    const double at = moment(random);
    const auto ends = broken.run({fmt::format("PLAY_TERM_AFTER={:.3f}", at)});
    fmt::print("interruption {} after {:.3f} s: {}\n", i + 1, at, told(ends));
    for (const HostEnd& end : ends) {
      ASSERT_TRUE(end.status == "143" || end.status == "0") << end.said();
      ASSERT_EQ(end.failure, "") << end.said();
    }
    if (ends[0].status == "143") ++interrupted;
    broken.synchronize_checkpoints();
  }
  expect_ended_well(broken.run());
  EXPECT_GE(interrupted, 15);
  EXPECT_EQ(broken.model(), unbroken.model());
  EXPECT_EQ(broken.losses(), unbroken.losses());
}

// A model in parts, each host's on its own disk. A host is killed, and with it go files that were
// not in S3 yet.
TEST_F(ClusterJob, SurvivesLostHostsAndFiles) {
  if (!is_full()) GTEST_SKIP() << "./dev test --full runs it";
  const Json run = hyperparameters(
      400, {{"sagemaker_distributed_dataparallel_enabled", "false"},
            {"sagemaker_mpi_enabled", "true"},
            {"mp_parameters", R"({"sharded_data_parallel_degree": 2, "ddp": true})"},
            {"save_strategy", "\"steps\""},
            {"save_steps", "20"},
            {"save_total_limit", "3"},
            {"logging_steps", "10"}});
  Job unbroken(run, *text_), broken(run, *text_);
  expect_ended_well(unbroken.run());
  std::mt19937 random(3);
  std::uniform_real_distribution<double> moment(1, 8);
  int passed_over = 0;
  for (int i = 0; i < 8; ++i) {
    const auto ends =
        broken.run({"PLAY_KILL=host", fmt::format("PLAY_KILL_AFTER={:.3f}", moment(random))});
    fmt::print("lost host {}: {}\n", i + 1, told(ends));
    EXPECT_TRUE(ends[0].status != "0" || ends[1].status == "0") << ends[0].said();
    if (ends[0].out.find("is passed over: ") != std::string::npos) ++passed_over;
    broken.synchronize_checkpoints(&random);
  }
  expect_ended_well(broken.run());
  EXPECT_GE(passed_over, 1);
  EXPECT_EQ(broken.model(), unbroken.model());
}

}  // namespace
}  // namespace shoal::sagemaker
