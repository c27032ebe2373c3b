// `shoal jobs` and s3:// paths: the real program with fake AWS services on loopback.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "apps/shoal_fixture.h"
#include "sagemaker/rest/fake_aws.h"
#include <nlohmann/json.hpp>

#include "shoal/sagemaker/rest/encode.h"

namespace shoal {
namespace {

using nlohmann::json;
using test::FakeAws;

class ShoalJobs : public ::testing::Test {
 protected:
  ProgramResult jobs(std::vector<std::string> words, std::vector<std::string> environment = {}) {
    words.insert(words.begin(), {SHOAL_PROGRAM, "jobs"});
    ProgramOptions options{.environment = aws_.environment()};
    options.environment.insert(options.environment.end(), environment.begin(), environment.end());
    return test::run_program(words, options);
  }
  json jobs_json(std::vector<std::string> words) {
    words.emplace_back("--json");
    const ProgramResult result = jobs(words);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(result.out);
  }
  static json on(const char* type, int count, int trained, int billed, bool spot) {
    return {{"ResourceConfig", {{"InstanceType", type}, {"InstanceCount", count}}},
            {"TrainingTimeInSeconds", trained},
            {"BillableTimeInSeconds", billed},
            {"EnableManagedSpotTraining", spot}};
  }

  FakeAws aws_;
};

TEST_F(ShoalJobs, ListAndDescribe) {
  aws_.add_job("first-job", on("ml.p4d.24xlarge", 2, 1000, 300, true));
  aws_.add_job("second-job", json::object());
  const ProgramResult list = jobs({"list"});
  ASSERT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("NAME        STATUS      CREATED"));
  EXPECT_THAT(list.out, HasSubstr("first-job   InProgress  20"));
  EXPECT_EQ(jobs_json({"list", "--name-contains", "second"}).size(), 1U);
  const ProgramResult one =
      jobs({"describe", "arn:aws:sagemaker:us-east-1:1:training-job/first-job"});
  ASSERT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("status            InProgress (Starting)"));
  EXPECT_THAT(one.out, HasSubstr("2 x ml.p4d.24xlarge, spot"));
  EXPECT_THAT(one.out, HasSubstr("70.0 %"));
  EXPECT_EQ(jobs_json({"describe", "first-job"})["SecondaryStatus"], "Downloading");
}

TEST_F(ShoalJobs, AttachFollowsToTheEnd) {
  aws_.add_job("a-job", json{{"ModelArtifacts", {{"S3ModelArtifacts", "s3://b/model.tar.gz"}}}});
  aws_.add_log_at("a-job", "Training", "{'loss': 1.5}");
  aws_.add_log_at("a-job", "Completed", "the last line");
  const ProgramResult result = jobs({"attach", "a-job", "--interval", "0.01"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2023-11-14T22:13:22Z Training: now Training\n"
                                    "algo-1 | {'loss': 1.5}\n"));
  EXPECT_THAT(result.out, HasSubstr("Completed: now Completed\nalgo-1 | the last line\n"
                                    "a-job: Completed\nmodel: s3://b/model.tar.gz\n"));
  aws_.add_job("bad", json{{"FailureReason", "AlgorithmError: it failed"}},
               {{"InProgress", "Training"}, {"Failed", "Failed"}});
  const ProgramResult bad = jobs({"attach", "bad", "--interval", "0.01", "--json"});
  EXPECT_EQ(bad.status, 1);
  std::istringstream lines(bad.out);
  std::vector<json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[2]["status"], "Failed");
  EXPECT_EQ(events[2]["failure_reason"], "AlgorithmError: it failed");
}

// Keys that expire soon are requested for each call. The second request fails.
TEST_F(ShoalJobs, AttachOutlastsAProcessThatFails) {
  aws_.add_job("a-job", json::object());
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "config")
      << "[default]\ncredential_process = sh '" + (directory / "p") + "'\n";
  const auto soon = std::chrono::system_clock::now() + std::chrono::minutes(5);
  const json keys = {{"AccessKeyId", FakeAws::kKey},
                     {"SecretAccessKey", FakeAws::kSecret},
                     {"Expiration", sagemaker::extended_time(soon)}};
  const auto process = [&](const std::string& fails) {
    std::ofstream(directory / "p")
        << "echo . >> " << directory / "asked" << "\n[ $(wc -l < " << directory / "asked" << ") "
        << fails << " ] && exit 3\necho '" << keys.dump() << "'\n";
  };
  const std::vector<std::string> environment = {
      "AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_CONFIG_FILE=" + directory / "config"};
  process("= 2");
  const ProgramResult result = jobs({"attach", "a-job", "--interval", "0.01"}, environment);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("a-job: Completed\n"));
  EXPECT_THAT(result.err, HasSubstr("status 3; run it by hand to see why; the job goes on"));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr(FakeAws::kSecret)));
  process("-ge 0");
  const ProgramResult never = jobs({"attach", "a-job", "--interval", "0.01"}, environment);
  EXPECT_EQ(never.status, 4);
  EXPECT_TRUE(is_one_line(never.err)) << never.err;
}

TEST_F(ShoalJobs, LogsOnceAndFollowed) {
  aws_.add_job("a-job", json::object());
  EXPECT_EQ(jobs({"logs", "a-job"}).status, 0) << "nothing yet";
  aws_.add_log("a-job/algo-1-1", 1'700'000'000'000, "one");
  EXPECT_EQ(jobs({"logs", "a-job"}).out, "algo-1 | one\n");
  aws_.add_log_at("a-job", "Uploading", "two");
  const ProgramResult followed = jobs({"logs", "a-job", "-f", "--interval", "0.01"});
  EXPECT_EQ(followed.out, "algo-1 | one\nalgo-1 | two\n") << followed.err;
  const ProgramResult objects = jobs({"logs", "a-job", "--json"});
  EXPECT_EQ(json::parse(objects.out.substr(0, objects.out.find('\n')))["message"], "one");
}

TEST_F(ShoalJobs, LogsCannotCommandTheTerminal) {
  aws_.add_job("a-job", json::object());
  aws_.add_log("a-job/algo-1-1", 1'700'000'000'000,
               "\x1b[2J\xc2\x9b"
               "31m\xe2\x80\xae done");
  EXPECT_EQ(jobs({"logs", "a-job"}).out, "algo-1 | \\x1b[2J\\u009b31m\\u202e done\n");
  const ProgramResult object = jobs({"logs", "a-job", "--json"});
  EXPECT_EQ(object.out.find_first_of("\x1b\xc2\xe2"), std::string::npos) << object.out;
  EXPECT_EQ(json::parse(object.out)["message"],
            "\x1b[2J\xc2\x9b"
            "31m\xe2\x80\xae done");
}

TEST_F(ShoalJobs, Cost) {
  aws_.add_job("plain", on("ml.p4d.24xlarge", 2, 3600, 3600, false));
  aws_.add_job("spot", on("ml.p4d.24xlarge", 2, 4000, 1000, true));
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "prices.json") << R"({"ml.p4d.24xlarge": 30})";
  const json costs = jobs_json({"cost", "plain", "spot", "--prices", directory / "prices.json"});
  EXPECT_EQ(costs[0]["cost"], 60.0);
  EXPECT_EQ(costs[0]["price_per_hour"], 30.0) << "of one instance";
  EXPECT_NEAR(costs[1]["cost"].get<double>(), 2 * 1000.0 / 3600 * 30, 1e-9);
  EXPECT_NEAR(costs[1]["spot_saving_percent"].get<double>(), 75, 1e-9);
  EXPECT_NEAR(costs[1]["of_the_first"].get<double>(), 1000.0 / 3600, 1e-9);
  const ProgramResult table = jobs({"cost", "plain", "spot"});
  EXPECT_THAT(table.out, HasSubstr("75.0 %"));
  EXPECT_THAT(table.out, HasSubstr("2.000"));
  std::ofstream(directory / "none.json") << "{}";
  const ProgramResult none = jobs({"cost", "plain", "--prices", directory / "none.json"});
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("has no price of ml.p4d.24xlarge"));
  EXPECT_TRUE(is_one_line(none.err));
}

// A job with instance groups does not stop the comparison: each group has its price.
TEST_F(ShoalJobs, CostOfGroups) {
  aws_.add_job("plain", on("ml.p4d.24xlarge", 2, 3600, 3600, false));
  json groups = on("", 0, 3600, 1800, false);
  groups["ResourceConfig"] = {
      {"InstanceGroups",
       {{{"InstanceGroupName", "a"}, {"InstanceType", "ml.p4d.24xlarge"}, {"InstanceCount", 2}},
        {{"InstanceGroupName", "b"}, {"InstanceType", "ml.c5n.18xlarge"}, {"InstanceCount", 3}}}}};
  aws_.add_job("mixed", groups);
  const testing::TemporaryDirectory directory;
  const std::string file = directory / "prices.json";
  std::ofstream(file) << R"({"ml.p4d.24xlarge": 30, "ml.c5n.18xlarge": 4})";
  const json costs = jobs_json({"cost", "plain", "mixed", "--prices", file});
  EXPECT_EQ(costs[0]["price_per_hour"], 30.0);
  EXPECT_EQ(costs[0]["instances"][0]["price_per_hour"], 30.0);
  EXPECT_EQ(costs[1]["price_per_hour"], nullptr) << "there are two";
  EXPECT_EQ(costs[1]["instances"][0]["price_per_hour"], 30.0);
  EXPECT_EQ(costs[1]["instances"][1]["price_per_hour"], 4.0);
  EXPECT_EQ(costs[1]["cost"], 36.0);
  EXPECT_EQ(costs[1]["instance_hours"], 2.5);
  EXPECT_EQ(costs[1]["of_the_first"], 0.6);
  EXPECT_EQ(costs[1]["instances"][1]["instance_type"], "ml.c5n.18xlarge");
  EXPECT_EQ(jobs_json({"cost", "mixed"})[0]["instances"][1]["price_per_hour"], nullptr);
  EXPECT_THAT(jobs({"cost", "mixed"}).out, HasSubstr("2 x ml.p4d.24xlarge + 3 x ml.c5n.18xlarge"));
  std::ofstream(file) << R"({"ml.p4d.24xlarge": 30})";
  const ProgramResult none = jobs({"cost", "plain", "mixed", "--prices", file});
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("has no price of ml.c5n.18xlarge, on which mixed ran"));
}

TEST_F(ShoalJobs, StopAndMetrics) {
  aws_.add_job("a-job",
               json{{"FinalMetricDataList", {{{"MetricName", "train:loss"}, {"Value", 1.25}}}}});
  EXPECT_THAT(jobs({"metrics", "a-job"}).out, HasSubstr("train:loss  1.25"));
  const ProgramResult stopped = jobs({"stop", "a-job"});
  EXPECT_EQ(stopped.status, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("a-job: asked to stop"));
  EXPECT_EQ(jobs_json({"describe", "a-job"})["TrainingJobStatus"], "Stopping");
}

TEST_F(ShoalJobs, ErrorsAreOneLine) {
  const auto refused = [&](std::vector<std::string> words, std::vector<std::string> environment,
                           const std::string& why) {
    const ProgramResult result = jobs(std::move(words), std::move(environment));
    EXPECT_GT(result.status, 0);
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_TRUE(is_one_line(result.err)) << result.err;
    EXPECT_THAT(result.err + result.out, ::testing::Not(HasSubstr(FakeAws::kSecret)));
  };
  refused({"describe", "gone"}, {}, "Requested resource not found");
  refused({"describe", "no_name"}, {}, "no name of a training job");
  refused({"list"}, {"AWS_SECRET_ACCESS_KEY=wrong"}, "check the credentials (environment)");
  refused({"list"}, {"AWS_REGION="}, "no AWS region");
  refused({"list"}, {"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY="}, "no AWS credentials");
  refused({"list", "--profile", "gone"}, {}, "no AWS profile 'gone'");
  refused({"list", "--endpoint-url", "here"}, {}, "is no http or https URL");
  refused({"list", "--statsu", "x"}, {}, "did you mean --status?");
  refused({"list"}, {"AWS_ENDPOINT_URL=http://127.0.0.1:1", "AWS_MAX_ATTEMPTS=1"},
          "SageMaker ListTrainingJobs: POST http://127.0.0.1:1");
}

class ShoalSubmit : public ShoalJobs {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(root_ / "code");
    std::ofstream(root_ / "code/run.json") << "{}";
    std::ofstream(root_ / "job.json")
        << json{{"role", "arn:aws:iam::111122223333:role/R"},
                {"image_uri", "shoal:0.1.0-cuda12"},
                {"instance_type", "ml.g5.xlarge"},
                {"instance_count", 1},
                {"job_name", "my-job"},
                {"source_dir", "code"},
                {"entry_point", "run.json"},
                {"inputs", {{"train", "s3://bucket/train"}, {"model", "s3://bucket/model"}}}};
  }
  ProgramResult submit(std::vector<std::string> words = {}) {
    words.insert(words.begin(), {SHOAL_PROGRAM, "submit", root_ / "job.json"});
    return test::run_program(words, {.environment = aws_.environment()});
  }
  testing::TemporaryDirectory root_;
  const std::string code_ = "sagemaker-us-east-1-111122223333/my-job/source/sourcedir.tar.gz";
};

TEST_F(ShoalSubmit, UploadsCreatesAndFollows) {
  aws_.add_log("my-job/algo-1-1", 1'700'000'000'000, "a line");
  const ProgramResult result = submit({"--logs", "--interval", "0.01"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("code: s3://" + code_));
  EXPECT_THAT(result.out, HasSubstr("job: my-job in us-east-1 (arn:aws:sagemaker"));
  EXPECT_THAT(result.out, HasSubstr("algo-1 | a line\n"));
  EXPECT_THAT(result.out, HasSubstr("my-job: Completed\n"));
  EXPECT_TRUE(aws_.object(code_).starts_with("\x1f\x8b")) << "gzip";
  // The created job equals what a dry run prints.
  const json request = json::parse(submit({"--dry-run", "--json"}).out);
  const json created = jobs_json({"describe", "my-job"});
  for (const auto& [key, value] : request.items()) EXPECT_EQ(created.at(key), value) << key;
}

TEST_F(ShoalSubmit, CreatesOneJob) {
  aws_.fail_next({.operation = "SageMaker CreateTrainingJob", .done = true, .cut_after = 20});
  const ProgramResult result = submit({"--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["job"], "my-job");
  EXPECT_EQ(aws_.created(), 1);
  const ProgramResult again = submit();
  EXPECT_EQ(again.status, 4);
  EXPECT_THAT(again.err, HasSubstr("ResourceInUse"));
  EXPECT_EQ(aws_.created(), 1);
}

TEST_F(ShoalSubmit, NothingIsCreatedWithoutItsCode) {
  aws_.fail_next({.operation = "S3 PutObject",
                  .reply = test::xml_error(404, "NoSuchBucket", "The bucket does not exist")});
  const ProgramResult result = submit();
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.err, HasSubstr("create the bucket, or name another"));
  EXPECT_TRUE(is_one_line(result.err)) << result.err;
  EXPECT_EQ(aws_.created(), 0);
}

// --upload: local data become channels of the job.
class ShoalUpload : public ShoalSubmit {
 protected:
  void SetUp() override {
    ShoalSubmit::SetUp();
    std::filesystem::create_directories(root_ / "data/train/more");
    std::filesystem::create_directories(root_ / "data/model");
    write("train/a.csv", "text,label\nfish,good\n");
    write("train/more/b.csv", "text,label\n");
    write("model/config.json", "{}");
    write("train/.DS_Store", "hidden");
    job_ = json::parse(std::ifstream(root_ / "job.json"));
    job_.erase("inputs");
    write_job("my-job");
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / ("data/" + name)) << text;
  }
  void write_job(const std::string& name) {
    job_["job_name"] = name;
    std::ofstream(root_ / "job.json") << job_;
  }
  ProgramResult upload(std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"--upload", root_ / "data"});
    return submit(words);
  }
  // bucket/key of a file of the channel train.
  std::string key_of(const std::string& file) {
    const json request = json::parse(upload({"--dry-run", "--json"}).out);
    const std::string uri =
        request.at("InputDataConfig").at(1).at("DataSource").at("S3DataSource").at("S3Uri");
    EXPECT_THAT(uri, ::testing::MatchesRegex("s3://sagemaker-us-east-1-111122223333/shoal-data/"
                                             "data-[0-9a-f]{12}/train/"));
    return uri.substr(5) + file;
  }
  json job_;
};

TEST_F(ShoalUpload, ContinuesAfterAFailure) {
  const ProgramResult plan = upload({"--dry-run"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("(2 files, "));
  EXPECT_THAT(plan.out, HasSubstr(" MiB from " + (root_ / "data/train") + ")"));
  EXPECT_THAT(plan.out, HasSubstr(": 1 hidden file (names that begin with a dot) is left out\n"));
  const std::string first = key_of("a.csv"), second = key_of("more/b.csv");
  EXPECT_EQ(aws_.calls("S3 PutObject"), 0);

  const auto refused = test::xml_error(403, "AccessDenied", "Access Denied");
  aws_.fail_next({.operation = "S3 PutObject", .done = true, .delay_seconds = 1.1}, 2);
  aws_.fail_next({.operation = "S3 PutObject", .reply = refused});
  const ProgramResult failed = upload();
  EXPECT_EQ(failed.status, 4) << failed.err;
  EXPECT_THAT(failed.out, HasSubstr(" MiB (0 of 3 files)\n")) << "progress";
  EXPECT_EQ(aws_.calls("S3 PutObject"), 3);
  EXPECT_EQ(aws_.created(), 0);
  EXPECT_EQ(aws_.object(first), "text,label\nfish,good\n");
  EXPECT_FALSE(aws_.has_object(second));

  const ProgramResult done = upload();
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("data: 3 files, "));
  EXPECT_THAT(done.out, HasSubstr("; already there: 2\n"));
  EXPECT_EQ(aws_.calls("S3 PutObject"), 5) << "one file, and the code";
  EXPECT_EQ(aws_.object(second), "text,label\n");
  EXPECT_FALSE(aws_.has_object(key_of(".DS_Store")));
  const json created = jobs_json({"describe", "my-job"});
  EXPECT_EQ(created.at("InputDataConfig").at(0).at("ChannelName"), "model");
  EXPECT_EQ(created.at("InputDataConfig").at(1).at("ChannelName"), "train");
}

// An object of the same name and size is replaced if its bytes differ.
TEST_F(ShoalUpload, ComparesBytes) {
  ASSERT_EQ(upload().status, 0);
  const std::string key = key_of("a.csv");
  aws_.put_object(key, "text,label\nfish,best\n");
  write_job("again");
  const ProgramResult again = upload({"--json"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(aws_.object(key), "text,label\nfish,good\n");
  std::istringstream lines(again.out);
  int there = 0;
  for (std::string line; std::getline(lines, line);)
    if (const json event = json::parse(line); event["event"] == "uploaded") {
      EXPECT_EQ(event["was_there"], event["to"] != "s3://" + key) << line;
      ++there;
    }
  EXPECT_EQ(there, 3);
  // Other data goes to another place: a job may be reading the first.
  write("train/a.csv", "text,label\nfish,poor\n");
  EXPECT_NE(key_of("a.csv"), key);
  write("train/a.csv", "text,label\nfish,good\n");
  EXPECT_EQ(key_of("a.csv"), key);
}

TEST_F(ShoalUpload, LargeFilesGoInPartsOnce) {
  write("train/large.txt", std::string(17 << 20, 'x'));
  ASSERT_EQ(upload().status, 0);
  EXPECT_EQ(aws_.calls("S3 UploadPart"), 2);
  write_job("again");
  const ProgramResult again = upload();
  EXPECT_THAT(again.out, HasSubstr("data: 4 files, 17.0 MiB; already there: 4\n"));
  EXPECT_EQ(aws_.calls("S3 UploadPart"), 2);
}

TEST_F(ShoalUpload, RefusesWhatItCannotUpload) {
  const auto refused = [&](const std::string& directory, int status, const std::string& why) {
    const ProgramResult result = submit({"--upload", root_ / directory, "--dry-run"});
    EXPECT_EQ(result.status, status) << directory;
    EXPECT_THAT(result.err, HasSubstr(why)) << directory;
    EXPECT_TRUE(is_one_line(result.err)) << result.err;
  };
  refused("none", 3, "there is no directory");
  std::filesystem::create_directories(root_ / "empty/.git");
  std::ofstream(root_ / "empty/.git/config") << "x";
  refused("empty", 2, "has no files");
  std::filesystem::create_directories(root_ / "linked");
  std::filesystem::create_directory_symlink(root_ / "data/train", root_ / "linked/train");
  refused("linked", 2, "is a link to a directory");
  write("a.csv", "x");
  refused("data", 2, "has files beside a folder train");
  std::filesystem::remove(root_ / "data/a.csv");
  job_["inputs"] = {{"train", "s3://bucket/train"}};
  write_job("my-job");
  refused("data", 2, "there are two channels train");
}

// Training on files in S3 gives the same result as on local files.
class ShoalS3 : public Shoal {
 protected:
  static std::string text_in(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  FakeAws aws_;
};

TEST_F(ShoalS3, StreamsShards) {
  std::filesystem::create_directories(mine_ / "shards");
  std::istringstream lines(sentences(300));
  std::string line;
  for (int shard = 0; shard < 4; ++shard) {
    std::string text;
    for (int i = 0; i < 30 && std::getline(lines, line); ++i) text += line + "\n";
    std::ofstream(mine_ / fmt::format("shards/{}.txt", shard)) << text;
    aws_.put_object(fmt::format("bucket/data/{}.txt", shard), text);
  }
  const auto words = [&](const std::string& from, const std::string& to) {
    return train_words({"--streaming", "true", "--shuffle_buffer_size", "20", "--max_steps", "3",
                        "--train_file", from, "--output_dir", mine_ / to});
  };
  ASSERT_EQ(shoal(words(mine_ / "shards", "local")).status, 0);
  aws_.fail_next({.operation = "S3 GetObject", .done = true, .cut_after = 200});
  const ProgramResult far =
      shoal(words("s3://bucket/data/", "s3"), {.environment = aws_.environment()});
  ASSERT_EQ(far.status, 0) << far.err;
  const std::string model = text_in(mine_ / "local/model.safetensors");
  EXPECT_FALSE(model.empty());
  EXPECT_TRUE(text_in(mine_ / "s3/model.safetensors") == model);
  expect_refused(shoal(words("s3://bucket/nothing/", "x"), {.environment = aws_.environment()}),
                 "nothing matches s3://bucket/nothing/");
}

TEST_F(ShoalS3, PreparesData) {
  aws_.put_object("bucket/book.txt", sentences(40));
  const ProgramResult made = shoal(
      {"data", "prepare", "-t", *data_ / "tok", "-o", mine_ / "tokens", "s3://bucket/book.txt"},
      {.environment = aws_.environment()});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("40 documents"));
}

}  // namespace
}  // namespace shoal
