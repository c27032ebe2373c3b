// The clients against moto, an independent implementation that checks signatures (with_moto).
#include "sagemaker/moto/moto.h"
#include "sagemaker/rest/rig.h"

#include "shoal/sagemaker/rest/logs.h"
#include "shoal/sagemaker/rest/s3_source.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::sagemaker {
namespace {

class Moto : public ::testing::Test {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_MOTO(); }
  static Session session() { return Session(process_environment()); }
};

TEST_F(Moto, Objects) {
  const S3 s3 = session().s3();
  const S3Name name{"shoal-test", "a b/c+d=e/é.txt"};
  const std::string etag = s3.put(name, "0123456789");
  const ObjectHead head = s3.head(name);
  EXPECT_EQ(head.size, 10);
  EXPECT_EQ(head.etag, etag);
  std::string part(4, ' ');
  s3.read(name, etag, 3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "3456");
  for (int i = 0; i < 5; ++i) s3.put({"shoal-test", fmt::format("many/part {}+", i)}, "x");
  const auto listed = s3.list({"shoal-test", "many/"});
  ASSERT_EQ(listed.size(), 5U);
  EXPECT_EQ(listed[3].key, "many/part 3+");
  s3.remove(name);
  EXPECT_THAT(error_text([&] { (void)s3.head(name); }), HasSubstr("HTTP 404"));
}

TEST_F(Moto, Multipart) {
  const S3 s3 = session().s3();
  const std::string body((10 << 20) + 3, 'z');
  EXPECT_THAT(s3.upload({"shoal-test", "big"}, *make_memory_source(body, "body"),
                        {.part_bytes = 5 << 20, .connections = 2}),
              HasSubstr("-3\""));
  const auto source = S3Reader(s3).open("s3://shoal-test/big");
  EXPECT_TRUE(read_all(*source) == body);
  s3.put({"shoal-test", "big"}, "other");
  EXPECT_THAT(error_text([&] { read_all(*source); }), HasSubstr("changed while it was read"));
}

TEST_F(Moto, JobsAndLogs) {
  const TrainingJobs jobs(session().client(Service::sagemaker));
  const std::string name = fmt::format("job-{:.0f}", to_epoch(std::chrono::system_clock::now()));
  const std::string arn = jobs.create(
      {{"TrainingJobName", name},
       {"RoleArn", "arn:aws:iam::123456789012:role/training"},
       {"AlgorithmSpecification", {{"TrainingImage", "image"}, {"TrainingInputMode", "File"}}},
       {"OutputDataConfig", {{"S3OutputPath", "s3://shoal-test/out"}}},
       {"ResourceConfig",
        {{"InstanceType", "ml.p4d.24xlarge"}, {"InstanceCount", 2}, {"VolumeSizeInGB", 30}}},
       {"StoppingCondition", {{"MaxRuntimeInSeconds", 3600}}}});
  const DescribedJob job = jobs.describe(name);
  EXPECT_EQ(job.arn, arn);
  EXPECT_EQ(job.instance_count, 2);
  EXPECT_EQ(jobs.list({.name_contains = name}).size(), 1U);
  EXPECT_THROW(jobs.describe("gone"), ServiceError);
  JobLog log(session().client(Service::logs), test::kMotoJob);
  std::size_t lines = 0;
  log.read_new([&](const std::vector<LogEvent>& events) { lines += events.size(); });
  EXPECT_EQ(lines, 25U);
}

TEST_F(Moto, WrongSecretsAreRefused) {
  const auto wrong = [](std::string_view name) -> std::optional<std::string> {
    if (name == "AWS_SECRET_ACCESS_KEY") return "wrong";
    return process_environment()(name);
  };
  const Session mistaken{Environment(wrong)};
  EXPECT_THAT(error_text([&] { (void)TrainingJobs(mistaken.client(Service::sagemaker)).list(); }),
              HasSubstr("check the credentials (environment)"));
  EXPECT_THAT(error_text([&] { (void)mistaken.s3().list({"shoal-test", ""}); }),
              HasSubstr("SignatureDoesNotMatch"));
}

}  // namespace
}  // namespace shoal::sagemaker
