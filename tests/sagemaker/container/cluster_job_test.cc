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
    // Ended by SIGTERM, emulate clears away what it made.
    std::vector<std::string> all = {"timeout",
                                    "150",
                                    testing::source_path("bench/cluster/emulate"),
                                    "--hosts",
                                    "2",
                                    "--ranks-per-host",
                                    "1",
                                    "--launcher",
                                    "plain",
                                    "--",
                                    testing::source_path("tests/sagemaker/container/play_host"),
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
  // Of the newest checkpoint on the first host; 0: none.
  std::int64_t newest_step() const {
    std::int64_t step = 0;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(hosts_[0]->path("checkpoints"), ignored))
      if (const std::string name = entry.path().filename(); name.starts_with("checkpoint-"))
        step = std::max<std::int64_t>(step, std::stoll(name.substr(11)));
    return step;
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

// The tokenizer is one of Hugging Face's cache, whose place only a variable of each host's
// container says.
TEST_F(ClusterJob, TrainsOnTwoHostsAndSurvivesAnInterruption) {
  const std::string cached = *shared_ / "hub/models--shoal--tok";
  fs::create_directories(cached + "/refs");
  fs::create_directories(cached + "/snapshots");
  fs::copy(*shared_ / "tok", cached + "/snapshots/1", fs::copy_options::recursive);
  std::ofstream(cached + "/refs/main") << "1\n";
  const std::string cache = "HF_HOME=" + shared_->path();
  const Json named = {{"tokenizer_name", "\"shoal/tok\""}};

  // So many steps that the signal finds it training, however fast this machine is.
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
  EXPECT_EQ(ends[0].status, "1") << ends[0].said();
  EXPECT_THAT(ends[0].failure, HasSubstr("host algo-2 does not serve ssh on port 22 after 1 s"));
}

bool is_full() { return std::getenv("SHOAL_TEST_FULL") != nullptr; }

// The step that a start went on from; 0: from the beginning.
std::int64_t first_step(const std::vector<HostEnd>& ends) {
  std::smatch found;
  return std::regex_search(ends[0].out, found, std::regex("resuming from \\S+ at step (\\d+)"))
             ? std::stoll(found[1])
             : 0;
}

// Of play_host: when so many steps of this start were logged, and a moment later.
std::vector<std::string> after_steps(std::int64_t steps, double seconds) {
  return {"PLAY_WHEN='loss': ", fmt::format("PLAY_LINES={}", steps),
          fmt::format("PLAY_AFTER={:.3f}", seconds)};
}

// Of one job, on both hosts. Moments are drawn in steps, each of what is left: so all fall within
// training, whatever the speed of the machine. Between them are some before there are ranks.
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
    // Half of a fair share, since steps go on until the signal has its effect.
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

// A model in parts, each host's on its own disk. A host is killed while it trains, and with it go
// files that were not in S3 yet.
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
    // Two whole checkpoints at least, of which one may be lost, and one that is being written.
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
