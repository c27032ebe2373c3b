// AWS keys must not appear in the real program's output, even at debug level, in command lines of
// its children, or in core files.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/shoal_fixture.h"
#include "sagemaker/rest/fake_aws.h"
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::FakeAws;
using ::testing::Not;

// True if the kernel writes a core file for a program that crashes and does not prevent it.
bool writes_core_files(const std::string& directory) {
  ProgramOptions crash;
  crash.directory = directory;
  crash.core_files = true;
  crash.signal = SIGABRT;
  crash.signal_when_out_has = "up";
  const ProgramResult result = test::run_program({"sh", "-c", "echo up; exec sleep 10"}, crash);
  // Remove the core file, which is at the path of core_pattern.
  std::string pattern;
  std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), pattern);
  const auto at = pattern.find("%p");
  if (at != pattern.npos) pattern.replace(at, 2, std::to_string(result.pid));
  std::error_code ignored;
  if (pattern.starts_with('/') && pattern.find('%') == pattern.npos && at != pattern.npos)
    fs::remove(pattern, ignored);
  return result.left_core;
}

class Secrets : public Shoal {
 protected:
  static constexpr const char* kToken = "FwoGZXIvYXdzEBYaDsessiontoken";

  void SetUp() override {
    fs::create_directories(mine_ / "code");
    std::ofstream(mine_ / "code/run.json") << "{}";
    for (int shard = 0; shard < 2; ++shard)
      aws_.put_object(fmt::format("bucket/data/{}.txt", shard), sentences(60));
    aws_.add_job("a-job", json::object());
    aws_.add_log("a-job/algo-1-1", 1'700'000'000'000, "a line");
  }
  std::string job_file(const std::string& name, const json& more = json::object()) {
    json job = {{"role", "arn:aws:iam::111122223333:role/R"},
                {"image_uri", "shoal:0.1.0-cuda12"},
                {"instance_type", "ml.g5.xlarge"},
                {"instance_count", 1},
                {"job_name", name},
                {"source_dir", "code"},
                {"entry_point", "run.json"},
                {"inputs", {{"train", "s3://bucket/train"}, {"model", "s3://bucket/model"}}}};
    job.update(more);
    std::ofstream(mine_ / (name + ".json")) << job;
    return mine_ / (name + ".json");
  }
  std::vector<std::string> streaming(const std::string& steps) const {
    return train_words({"--streaming", "true", "--train_file", "s3://bucket/data/", "--max_steps",
                        steps, "--save_strategy", "no", "--logging_steps", "1"});
  }
  // Runs the program with temporary keys at debug level, and searches its output for them.
  ProgramResult debug(const std::vector<std::string>& words, ProgramOptions options = {}) {
    auto environment = aws_.environment();
    environment.insert(environment.end(),
                       {std::string("AWS_SESSION_TOKEN=") + kToken, "SHOAL_LOG=debug"});
    environment.insert(environment.end(), options.environment.begin(), options.environment.end());
    options.environment = environment;
    const ProgramResult result = shoal(words, options);
    expect_none(result.out + result.err);
    return result;
  }
  static void expect_none(const std::string& text) {
    EXPECT_THAT(text, Not(HasSubstr(FakeAws::kSecret)));
    EXPECT_THAT(text, Not(HasSubstr(kToken)));
    EXPECT_THAT(text, Not(HasSubstr("t0ken-of-git")));
  }

  const json git_ = {{"repo", "https://host.example/x.git"}, {"token", "t0ken-of-git"}};
  FakeAws aws_;
};

TEST_F(Secrets, StandInNoLog) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"jobs", "list"},
           {"jobs", "describe", "a-job", "--json"},
           {"jobs", "logs", "a-job"},
           {"submit", job_file("my-job"), "--logs", "--interval", "0.01"},
           streaming("2")}) {
    const ProgramResult result = debug(words);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr(aws_.url()));  // at debug level
    EXPECT_THAT(result.err, HasSubstr(FakeAws::kKey)) << "identifiers may be printed";
  }
  const std::string dry = job_file("dry-job", {{"git_config", git_}});
  const ProgramResult shown = debug({"submit", dry, "--dry-run", "--json"});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("TrainingJobName"));
}

// Values of a wrong type or under a wrong name may be the secret.
TEST_F(Secrets, StandInNoComplaintAboutAJobFile) {
  const std::string token = "t0ken-of-git";
  for (const json& more :
       std::vector<json>{{{"git_config", "https://user:" + token + "@host/x"}},
                         {{"git_config", {{"repo", "https://user:" + token + "@host/x"}}}},
                         {{"git_config", {{"repo", "ssh://user:" + token + "@host/x"}}}},
                         {{"git_config", {{"repo", "https://host/x"}, {"password", {token}}}}},
                         {{"environment", {{"AWS_SECRET_ACCESS_KEY", FakeAws::kSecret}}}},
                         {{"environment", {{"AWS_SESSION_TOKEN", kToken}}}},
                         {{"environment", {"DB_PASSWORD=" + token}}},
                         {{"output_path", "s3://key:" + token + "@bucket/x"}}}) {
    const ProgramResult result = debug({"submit", job_file("wrong-job", more), "--dry-run"});
    EXPECT_EQ(result.status, 2) << more << result.out;
    EXPECT_THAT(result.err, HasSubstr("submit: /")) << more;
  }
  std::ofstream(mine_ / "torn.json") << R"({"git_config": {"token": ")" << token;
  const ProgramResult torn = debug({"submit", mine_ / "torn.json", "--dry-run"});
  EXPECT_EQ(torn.status, 3);
  EXPECT_THAT(torn.err, HasSubstr("line 1"));
  const ProgramResult shown =
      debug({"submit", job_file("shown", {{"environment", {{"HF_TOKEN", token}}}}), "--dry-run",
             "--json"});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr(R"("HF_TOKEN": "***")"));
}

TEST_F(Secrets, StandInNoError) {
  const test::ServedReply told = test::json_error(
      400, "ExpiredTokenException", "The security token included in the request is expired");
  aws_.fail_next({.operation = "SageMaker ListTrainingJobs", .reply = told});
  EXPECT_EQ(debug({"jobs", "list"}).status, 4);
  aws_.fail_next({.operation = "SageMaker CreateTrainingJob", .done = true, .cut_after = 20});
  EXPECT_EQ(debug({"submit", job_file("cut-job")}).status, 0);
  EXPECT_EQ(debug({"jobs", "describe", "gone"}).status, 3);
  aws_.fail_next({.operation = "S3 ListObjectsV2", .reply = {.status = 403, .body = "<Error/>"}});
  EXPECT_EQ(debug(streaming("2")).status, 4);
}

// Child processes get secrets by name or through the environment.
TEST_F(Secrets, StandInNoCommandLine) {
  fs::create_directories(mine_ / "bin");
  for (const char* name : {"git", "tar"}) {
    const std::string path = mine_ / "bin/" + name;
    std::ofstream(path) << "#!/bin/sh\necho \"$0 $*\" >> " << mine_ / "words"
                        << "\ncase $0 in *git) echo fatal: t0ken-of-git is no token >&2 ;; esac\n"
                        << "exit 128\n";
    fs::permissions(path, fs::perms::owner_all);
  }
  ProgramOptions here;
  here.environment = {"PATH=" + mine_ / "bin" + ":" + std::getenv("PATH")};
  std::string said;
  for (const std::string& file : {job_file("cloned", {{"git_config", git_}}), job_file("packed")}) {
    const ProgramResult result = debug({"submit", file}, here);
    EXPECT_EQ(result.status, 4) << result.err;
    said += result.out + result.err;
  }
  std::ifstream file(mine_ / "words");
  said.append(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(said, HasSubstr("bin/git clone"));
  EXPECT_THAT(said, HasSubstr("bin/tar --create"));
  EXPECT_THAT(said, HasSubstr("*** is no token"));
  expect_none(said);
}

TEST_F(Secrets, LieInNoCoreFile) {
  if (!writes_core_files(mine_.path()))
    GTEST_SKIP() << "the kernel writes no core files on this machine (core_pattern or a limit)";
  ProgramOptions crash;
  crash.directory = mine_.path();
  crash.core_files = true;
  crash.signal = SIGABRT;
  const auto expect_no_core = [&](const std::vector<std::string>& words, const std::string& when,
                                  const std::vector<std::string>& environment) {
    crash.signal_when_out_has = when;
    crash.environment = environment;
    const ProgramResult result = debug(words, crash);
    EXPECT_EQ(result.signal, SIGABRT) << words[0] << result.out << result.err;
    EXPECT_FALSE(result.left_core) << words[0];
  };
  std::ofstream(mine_ / "credentials") << "[default]\naws_access_key_id = " << FakeAws::kKey
                                       << "\naws_secret_access_key = " << FakeAws::kSecret << "\n";
  // Keys from the environment, and keys that the program finds by itself.
  for (const std::vector<std::string>& environment : std::vector<std::vector<std::string>>{
           {},
           {"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_SESSION_TOKEN=",
            "AWS_SHARED_CREDENTIALS_FILE=" + mine_ / "credentials"}}) {
    expect_no_core({"jobs", "attach", "a-job", "--interval", "30"}, "Starting", environment);
    expect_no_core(
        {"submit", job_file(environment.empty() ? "one" : "two"), "--wait", "--interval", "30"},
        "job: ", environment);
    expect_no_core(streaming("100000"), "'loss'", environment);
  }
}

TEST_F(Shoal, WritesAJobTokenThatOnlyItsOwnerReads) {
  const testing::TemporaryDirectory mine;
  const std::string path = mine / "token";
  const ProgramResult made = shoal({"token", path});
  EXPECT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("SHOAL_JOB_TOKEN_FILE=" + path));
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::file_size(path), 65u);
  std::string token;
  std::getline(std::ifstream(path), token);
  EXPECT_THAT(made.out + made.err, Not(HasSubstr(token.substr(0, 16))));
  const ProgramResult again = shoal({"token", path});  // a running job may use the first token
  EXPECT_EQ(again.status, 4);
  EXPECT_TRUE(is_one_line(again.err)) << again.err;
  EXPECT_THAT(again.err, HasSubstr("exists"));
}

}  // namespace
}  // namespace shoal
