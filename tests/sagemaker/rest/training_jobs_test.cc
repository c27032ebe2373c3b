#include "shoal/sagemaker/rest/training_jobs.h"

#include "sagemaker/rest/rig.h"
#include "support/source_tree.h"

#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/json.h"
#include "shoal/sagemaker/rest/logs.h"

namespace shoal::sagemaker {
namespace {

using nlohmann::json;
using test::json_error;
using test::ServedReply;

class Jobs : public ::testing::Test {
 protected:
  static json request(const std::string& name) {  // only the required members
    return {{"TrainingJobName", name},
            {"RoleArn", "arn:aws:iam::123456789012:role/R"},
            {"AlgorithmSpecification",
             {{"TrainingImage", "me/shoal:1"}, {"TrainingInputMode", "File"}}},
            {"OutputDataConfig", {{"S3OutputPath", "s3://bucket/out"}}}};
  }
  FakeAws aws_;
  std::vector<double> waits_;
  const Session session_ = session_at(aws_, &waits_);
  const TrainingJobs jobs_{session_.client(Service::sagemaker)};
};

TEST_F(Jobs, CreateDescribeStop) {
  EXPECT_EQ(jobs_.create(request("a-job")), "arn:aws:sagemaker:us-east-1:1:training-job/a-job");
  EXPECT_THAT(error_text([&] { jobs_.create(request("a-job")); }),
              AllOf(HasSubstr("ResourceInUse"), HasSubstr("choose another name")));
  DescribedJob job = jobs_.describe("a-job");
  EXPECT_EQ(job.status, "InProgress");
  EXPECT_EQ(job.secondary_status, "Starting");
  EXPECT_FALSE(job.has_ended());
  ASSERT_EQ(job.transitions.size(), 1U);
  EXPECT_EQ(job.transitions[0].message, "now Starting");
  jobs_.stop("a-job");
  EXPECT_EQ(jobs_.describe("a-job").status, "Stopping");
  EXPECT_TRUE(jobs_.describe("a-job").has_ended());
  try {
    jobs_.describe("another");
    ADD_FAILURE();
  } catch (const ServiceError& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_TRUE(error.is_missing());
  }
  for (const char* wrong : {"", "-a", "a-", "a_b", "a b"})
    EXPECT_THAT(error_text([&] { jobs_.describe(wrong); }), HasSubstr("no name of a training job"));
  EXPECT_THROW(jobs_.describe(std::string(64, 'a')), Error);
}

// Whatever happens to the answer, one job exists and the caller gets its ARN.
TEST_F(Jobs, CreatesNoJobTwice) {
  log::set_level(log::Level::error);  // each case logs a warning
  const ServedReply sample{
      .headers = {{"Content-Type", "application/x-amz-json-1.1"}, {"x-amzn-RequestId", "req-1"}},
      .body =
          json{{"TrainingJobArn", "arn:aws:sagemaker:us-east-1:1:training-job/job-000"}}.dump()};
  const auto length = static_cast<int>(test::wire_bytes({}, sample).size());
  for (int cut = 0; cut < length; ++cut) {
    const std::string name = fmt::format("job-{:03}", cut);
    aws_.fail_next({.operation = "SageMaker CreateTrainingJob", .done = true, .cut_after = cut});
    EXPECT_EQ(jobs_.create(request(name)), "arn:aws:sagemaker:us-east-1:1:training-job/" + name);
  }
  EXPECT_EQ(aws_.created(), length);
  EXPECT_EQ(aws_.calls("SageMaker CreateTrainingJob"), length);
  log::set_level(log::Level::info);
}

TEST_F(Jobs, RetriesAJobThatWasNotCreated) {
  const Fault unavailable{.operation = "SageMaker CreateTrainingJob",
                          .reply = {.status = 503, .body = "<html>busy</html>"}};
  aws_.fail_next(unavailable, 2);
  jobs_.create(request("late"));
  EXPECT_EQ(aws_.created(), 1);
  EXPECT_EQ(aws_.calls("SageMaker CreateTrainingJob"), 3);
  EXPECT_THAT(waits_, ElementsAre(1, 2));
  aws_.fail_next(unavailable, 3);
  EXPECT_THAT(error_text([&] { jobs_.create(request("never")); }), HasSubstr("HTTP 503"));
  // A throttled request was not carried out, so the client does not look for the job.
  const int looked = aws_.calls("SageMaker DescribeTrainingJob");
  aws_.fail_next({.operation = "SageMaker CreateTrainingJob",
                  .reply = json_error(400, "ThrottlingException", "Rate exceeded")});
  jobs_.create(request("throttled"));
  EXPECT_EQ(aws_.calls("SageMaker DescribeTrainingJob"), looked);
}

TEST_F(Jobs, AnotherJobOfThatNameIsNotOurs) {
  aws_.add_job("old", {{"CreationTime", 1.6e9}});
  aws_.fail_next({.operation = "SageMaker CreateTrainingJob", .reply = {.status = 500}});
  EXPECT_THAT(error_text([&] { jobs_.create(request("old")); }), HasSubstr("HTTP 500"));
  EXPECT_EQ(aws_.created(), 0);
}

// The machine's clock is an hour fast, and the answer of the request that created the job is lost.
TEST_F(Jobs, KnowsItsJobByTheServicesClock) {
  log::set_level(log::Level::error);
  int created = 0;
  const auto transport = std::make_shared<FunctionTransport>([&](const HttpRequest& request) {
    if (*find_header(request.headers, "X-Amz-Date") > "20240101T100500Z")
      return HttpResponse{.status = 400,
                          .headers = {{"date", "Mon, 01 Jan 2024 10:00:00 GMT"}},
                          .body = R"({"__type": "InvalidSignatureException",
                                      "message": "Signature not yet current"})"};
    if (find_header(request.headers, "X-Amz-Target")->ends_with("CreateTrainingJob")) {
      ++created;
      throw TransportError("it broke", "", true, true);
    }
    return HttpResponse{.status = 200,
                        .body = json{{"TrainingJobStatus", "InProgress"},
                                     {"TrainingJobArn", "arn:ours"},
                                     {"CreationTime", 1704103200}}  // 10:00
                                    .dump()};
  });
  const TrainingJobs jobs(
      ServiceClient({.transport = transport,
                     .credentials = example_keys(),
                     .retry = no_waiting(),
                     .now = [] { return *parse_time("2024-01-01T11:00:00Z"); }},
                    resolve_endpoint(Service::sagemaker, {.region = "us-east-1"})));
  EXPECT_EQ(jobs.create(request("ours")), "arn:ours");
  EXPECT_EQ(created, 1);
  log::set_level(log::Level::info);
}

// The job was created, the answer is lost, and the job is not yet visible. The second request
// finds its name in use.
TEST_F(Jobs, SeesItsJobLate) {
  log::set_level(log::Level::error);
  aws_.fail_next({.operation = "SageMaker CreateTrainingJob", .done = true, .cut_after = 5});
  aws_.fail_next(
      {.operation = "SageMaker DescribeTrainingJob",
       .reply = json_error(400, "ValidationException", "Requested resource not found.")});
  EXPECT_EQ(jobs_.create(request("late")), "arn:aws:sagemaker:us-east-1:1:training-job/late");
  EXPECT_EQ(aws_.created(), 1);
  EXPECT_EQ(aws_.calls("SageMaker CreateTrainingJob"), 2);
  log::set_level(log::Level::info);
}

// The fake service enforces the limits of the service's model.
TEST_F(Jobs, AreHeldToTheServicesLimits) {
  const auto set = [](const char* pointer, const json& value) {
    json job = request("limits");
    job[json::json_pointer(pointer)] = value;
    return job;
  };
  const json s3 = {{"S3DataType", "S3Prefix"}, {"S3Uri", "s3://b/x"}};
  const auto channels = [](const json& channel) { return json::array({channel}); };
  struct Wrong {
    json job;
    const char* said;
  };
  std::vector<Wrong> all = {
      {set("/RoleArn", "arn:x"), "/RoleArn has 5; 20 to 2048"},
      {set("/RoleArn", "arn:aws:iam::12:role/R-long-enough"), "/RoleArn does not match"},
      {set("/HyperParameters/a", std::string(2501, 'x')), "/HyperParameters/a has 2501"},
      {set("/HyperParameters/a", 1), "/HyperParameters/a is no text"},
      {set("/Environment/A", std::string(513, 'x')), "/Environment/A has 513"},
      {set("/Environment", {{"1A", "x"}}), "/Environment/1A does not match"},
      {set("/Tags", std::vector<json>(51, {{"Key", "a"}, {"Value", ""}})), "/Tags has 51"},
      {set("/Tags", {{{"Key", "a"}}}), "/Tags/0/Value is required"},
      {set("/AlgorithmSpecification/TrainingInputMode", "Files"), "none of Pipe, File, FastFile"},
      {set("/AlgorithmSpecification/ContainerEntrypoint", json::array()), "has 0; 1 to 100"},
      {set("/AlgorithmSpecification/MetricDefinitions", {{{"Name", "a"}, {"Regex", ""}}}),
       "/AlgorithmSpecification/MetricDefinitions/0/Regex has 0; 1 to 500"},
      {set("/InputDataConfig", channels({{"ChannelName", "a b"}})), "ChannelName does not match"},
      {set("/InputDataConfig", channels({{"ChannelName", "a"}})),
       "/InputDataConfig/0/DataSource is required"},
      {set("/InputDataConfig",
           channels(
               {{"ChannelName", "a"}, {"DataSource", {{"S3DataSource", {{"S3Uri", "s3://b"}}}}}})),
       "S3DataType is required"},
      {set("/InputDataConfig",
           channels({{"ChannelName", "a"},
                     {"DataSource",
                      {{"S3DataSource", {{"S3DataType", "S3Prefix"}, {"S3Uri", "bucket/x"}}}}}})),
       "S3Uri does not match"},
      {set("/InputDataConfig",
           std::vector<json>(21, {{"ChannelName", "a"}, {"DataSource", {{"S3DataSource", s3}}}})),
       "/InputDataConfig has 21; 1 to 20"},
      {set("/OutputDataConfig/S3OutputPath", "x"), "/OutputDataConfig/S3OutputPath does not match"},
      {set("/ResourceConfig", {{"VolumeSizeInGB", 1}, {"KeepAlivePeriodInSeconds", 21601}}),
       "KeepAlivePeriodInSeconds is 21601; 0 to 21600"},
      {set("/ResourceConfig",
           {{"VolumeSizeInGB", 1}, {"InstanceGroups", {{{"InstanceCount", 1}}}}}),
       "/ResourceConfig/InstanceGroups/0/InstanceType is required"},
      {set("/ResourceConfig", {{"VolumeSizeInGB", 1}, {"InstancePlacementConfig", {{"a", 1}}}}),
       "/ResourceConfig/InstancePlacementConfig/a is no member"},
      {set("/StoppingCondition/MaxRuntimeInSeconds", 0), "MaxRuntimeInSeconds is 0; 1 to"},
      {set("/StoppingCondition/MaxWaitTimeInSeconds", 90000), "is of spot training"},
      {set("/EnableManagedSpotTraining", true), "is required for spot training"},
      {set("/CheckpointConfig/LocalPath", "/x"), "/CheckpointConfig/S3Uri is required"},
      {set("/VpcConfig", {{"Subnets", {"subnet-1"}}}), "/VpcConfig/SecurityGroupIds is required"},
      {set("/VpcConfig", {{"Subnets", {"subnet_1"}}, {"SecurityGroupIds", {"sg-1"}}}),
       "/VpcConfig/Subnets/0 does not match"},
      {set("/VpcConfig", {{"Subnets", {"s"}}, {"SecurityGroupIds", std::vector<json>(6, "sg-1")}}),
       "/VpcConfig/SecurityGroupIds has 6; 1 to 5"},
      {set("/RetryStrategy/MaximumRetryAttempts", 31), "MaximumRetryAttempts is 31; 1 to 30"},
      {set("/EnableNetworkIsolation", "true"), "/EnableNetworkIsolation is no boolean"},
      {set("/Hyperparameters", json::object()), "/Hyperparameters is no member"}};
  for (const char* needed : {"RoleArn", "AlgorithmSpecification", "OutputDataConfig"}) {
    all.push_back({request("limits"), "is required"});
    all.back().job.erase(needed);
  }
  for (const auto& [job, said] : all) {
    const int before = aws_.calls("SageMaker CreateTrainingJob");
    EXPECT_THAT(error_text([this, &sent = job] { jobs_.create(sent); }),
                AllOf(HasSubstr("ValidationException: /"), HasSubstr(said)));
    EXPECT_EQ(aws_.calls("SageMaker CreateTrainingJob"), before + 1) << "sent once";
  }
  EXPECT_EQ(aws_.created(), 0);
}

// Requests of the Python SDK and of `shoal submit` are within the limits.
TEST_F(Jobs, RequestsOfTheSdkAreWithinTheLimits) {
  const json golden = read_json_file(testing::source_path("tests/golden/sagemaker/requests.json"));
  int count = 0;
  for (const json& one : golden.at("cases")) {
    json job = one.at("request");
    job["TrainingJobName"] = fmt::format("golden-{}", count++);  // some golden jobs share a name
    EXPECT_NO_THROW(jobs_.create(job)) << one.at("name");
  }
  EXPECT_EQ(aws_.created(), count);
  EXPECT_GE(count, 14);
}

TEST_F(Jobs, ReportsAnUnknownOutcome) {
  log::set_level(log::Level::error);
  aws_.fail_next({.operation = "SageMaker CreateTrainingJob", .done = true, .cut_after = 5});
  aws_.fail_next({.operation = "SageMaker DescribeTrainingJob", .reply = {.status = 503}}, 3);
  EXPECT_THAT(error_text([&] { jobs_.create(request("lost")); }),
              AllOf(HasSubstr("it is not known whether lost was created"), HasSubstr("HTTP 503"),
                    HasSubstr("shoal jobs describe lost")));
  EXPECT_EQ(aws_.created(), 1);
  log::set_level(log::Level::info);
}

TEST_F(Jobs, ListsInPages) {
  for (int i = 0; i < 7; ++i) aws_.add_job(fmt::format("job-{}", i), json::object());
  aws_.page = 3;
  EXPECT_EQ(jobs_.list().size(), 7U);
  EXPECT_EQ(jobs_.list({.most = 4}).size(), 4U);
  EXPECT_EQ(jobs_.list({.most = 1000}).size(), 7U);
  EXPECT_EQ(jobs_.list({.name_contains = "b-5"}).at(0).name, "job-5");
  EXPECT_EQ(jobs_.list().at(0).status, "InProgress");
  EXPECT_EQ(jobs_.list({.name_contains = "job-"}).size(), 7U) << "a part of a name does not match";
  EXPECT_THAT(error_text([&] { jobs_.list({.name_contains = "a_b"}); }),
              HasSubstr("'a_b' is in no name"));
  EXPECT_THROW(jobs_.list({.most = 0}), Error);
}

TEST_F(Jobs, HaveTheirCost) {
  aws_.add_job("spot",
               {{"EnableManagedSpotTraining", true},
                {"TrainingTimeInSeconds", 1000},
                {"BillableTimeInSeconds", 300},
                {"ResourceConfig", {{"InstanceType", "ml.p4d.24xlarge"}, {"InstanceCount", 2}}},
                {"FinalMetricDataList",
                 {{{"MetricName", "train:loss"}, {"Value", 1.25}, {"Timestamp", 1.7e9}}}}});
  const DescribedJob job = jobs_.describe("spot");
  EXPECT_EQ(job.billed_instance_seconds(), 600);
  EXPECT_NEAR(*job.spot_saving_percent(), 70, 1e-9);
  EXPECT_EQ(job.metrics.at(0).name, "train:loss");
  EXPECT_EQ(job.metrics.at(0).value, 1.25);
  aws_.add_job("young", json::object());
  EXPECT_FALSE(jobs_.describe("young").billed_instance_seconds());
  EXPECT_FALSE(jobs_.describe("young").spot_saving_percent());
}

class Log : public Jobs {
 protected:
  std::vector<std::string> read(JobLog& log) {
    std::vector<std::string> lines;
    log.read_new([&](const std::vector<LogEvent>& events) {
      for (const LogEvent& event : events) lines.push_back(event.stream + ": " + event.message);
    });
    return lines;
  }
};

TEST_F(Log, ContinuesWhereItStopped) {
  JobLog log(session_.client(Service::logs), "a-job");
  EXPECT_TRUE(read(log).empty()) << "there is no group yet";
  aws_.add_log("a-job/algo-1-1", 2000, "second");
  aws_.add_log("a-job/algo-2-1", 1000, "first");
  aws_.add_log("a-job-2/algo-1-1", 1, "another job's");
  EXPECT_THAT(read(log), ElementsAre("algo-2-1: first", "algo-1-1: second"));
  EXPECT_TRUE(read(log).empty());
  aws_.add_log("a-job/algo-2-1", 3000, "third");
  aws_.add_log("a-job/algo-3-1", 4000, "a late host");
  EXPECT_THAT(read(log), ElementsAre("algo-2-1: third", "algo-3-1: a late host"));
}

TEST_F(Log, EmptyPagesAreNotTheEnd) {
  aws_.empty_pages = true;
  aws_.page = 2;
  std::vector<std::string> expected;
  for (int i = 0; i < 7; ++i) {
    aws_.add_log("a-job/algo-1-1", i, std::to_string(i));
    expected.push_back("algo-1-1: " + std::to_string(i));
  }
  JobLog log(session_.client(Service::logs), "a-job");
  EXPECT_EQ(read(log), expected);
  EXPECT_TRUE(read(log).empty());
}

TEST_F(Log, ThrottledAndCut) {
  for (int i = 0; i < 5; ++i) aws_.add_log("a-job/algo-1-1", i, std::to_string(i));
  aws_.fail_next({.operation = "Logs DescribeLogStreams",
                  .reply = json_error(400, "ThrottlingException", "slow")});
  aws_.fail_next({.operation = "Logs GetLogEvents", .done = true, .cut_after = 150});
  JobLog log(session_.client(Service::logs), "a-job");
  EXPECT_EQ(read(log).size(), 5U);
}

}  // namespace
}  // namespace shoal::sagemaker
