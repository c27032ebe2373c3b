#include "sagemaker/container/cluster_job.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "apps/program.h"
#include "support/source_tree.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/byte_source.h"

namespace shoal::sagemaker {

namespace fs = std::filesystem;

std::string HostEnd::said() const { return fmt::format("status {}\n{}\n{}", status, out, err); }

Job::Job(const Json& hyperparameters, const std::string& text) {
  fs::create_directories(folder_ / "ml");
  fs::create_directories(folder_ / "bin");
  for (const char* name : {"algo-1", "algo-2"}) {
    hosts_.push_back(std::make_unique<OptMl>(std::vector<std::string>{"algo-1", "algo-2"}, name,
                                             "ml.m5.xlarge", folder_ / name + "/ml", "eth0"));
    hosts_.back()->hyperparameters(hyperparameters);
    if (text.empty()) continue;
    hosts_.back()->inputs({{"train", {{"TrainingInputMode", "File"}}},
                           {"validation", {{"TrainingInputMode", "File"}}}});
    hosts_.back()->write("input/data/train/text.txt", text);
    hosts_.back()->write("input/data/validation/text.txt", text.substr(0, 4000));
  }
  std::ofstream(folder_ / "bin/sshd") << "";  // each host's own sshd is mounted here
}

std::vector<HostEnd> Job::run(std::vector<std::string> play, const std::vector<std::string>& words,
                              int seconds) {
  fs::remove(folder_ / "term");
  for (const char* name : {"algo-1", "algo-2"})
    for (const char* old : {".status", "/ml/output/failure"}) fs::remove(folder_ / name + old);
  // SIGTERM lets emulate clean up what it created.
  std::vector<std::string> all = {"timeout",
                                  std::to_string(seconds),
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
  const auto played = test::run_program(all, {.environment = play, .seconds = seconds + 20.0});
  EXPECT_NE(played.status, 124) << "the hosts did not end";
  return {end_of(0), end_of(1)};
}

void Job::synchronize_checkpoints(std::mt19937* lose) {
  if (lose != nullptr) lose_something(*lose);
  const auto all = fs::copy_options::recursive | fs::copy_options::skip_existing;
  for (const auto& [from, to] : {std::pair{0, 1}, {1, 0}}) {
    const std::string folder = hosts_[static_cast<std::size_t>(from)]->path("checkpoints");
    if (fs::exists(folder))
      fs::copy(folder, hosts_[static_cast<std::size_t>(to)]->path("checkpoints"), all);
  }
}

std::int64_t Job::newest_step() const {
  std::int64_t step = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(hosts_[0]->path("checkpoints"), ignored))
    if (const std::string name = entry.path().filename(); name.starts_with("checkpoint-"))
      step = std::max<std::int64_t>(step, std::stoll(name.substr(11)));
  return step;
}

bool Job::has_model(std::size_t host) const {
  return fs::exists(hosts_[host]->path("model/model.safetensors"));
}

std::string Job::model() const {
  return read_text_file(hosts_[0]->path("model/model.safetensors"));
}

std::string Job::losses() const {
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

void Job::lose_something(std::mt19937& random) {
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

std::string Job::left(const std::string& name) const {
  std::error_code ignored;
  return fs::exists(folder_ / name, ignored) ? read_text_file(folder_ / name) : std::string();
}

HostEnd Job::end_of(std::size_t host) const {
  const std::string name = fmt::format("algo-{}", host + 1);
  HostEnd end{left(name + ".status"), left(name + ".out"), left(name + ".err"),
              left(name + "/ml/output/failure")};
  if (end.status.ends_with('\n')) end.status.pop_back();
  return end;
}

std::string why_no_hosts() {
  if (!fs::exists("/usr/sbin/sshd")) return "no sshd; install openssh-server";
  for (const char* program : {"mpirun", "ssh", "nsenter"})
    if (std::system(fmt::format("command -v {} > /dev/null", program).c_str()) != 0)
      return fmt::format("no {}", program);
  const auto tried = test::run_program(
      {"bash", "-c",
       "n=shoal-probe-$$; ip netns add $n && ip -n $n link add v0 type veth peer name v1 && "
       "ip netns exec $n unshare --mount --uts --pid --fork --mount-proc "
       "tc qdisc add dev v0 root tbf rate 1gbit burst 512kb latency 100ms; "
       "s=$?; ip netns del $n; exit $s"});
  return tried.status == 0 ? std::string() : "needs root and network namespaces: " + tried.err;
}

void expect_ended_well(const std::vector<HostEnd>& ends) {
  for (const HostEnd& end : ends) {
    EXPECT_EQ(end.status, "0") << end.said();
    EXPECT_EQ(end.failure, "");
  }
}

}  // namespace shoal::sagemaker
