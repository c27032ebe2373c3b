#include "shoal/sagemaker/rest/endpoint.h"

#include <fstream>

#include "sagemaker/rest/rig.h"
#include "support/golden.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json.h"

namespace shoal::sagemaker {
namespace {

using nlohmann::json;

Service service_named(const std::string& name) {
  for (const Service service : {Service::sagemaker, Service::logs, Service::s3, Service::sts})
    if (signing_name(service) == name) return service;
  throw std::runtime_error(name);
}

// tools/golden/make_aws.py writes botocore's endpoint rules for every partition.
TEST(Endpoint, AsBotocoresRules) {
  const json golden = read_json_file(testing::golden_path("aws.json"));
  ASSERT_GT(golden.at("endpoints").size(), 50U);
  for (const json& entry : golden.at("endpoints")) {
    const Endpoint endpoint = resolve_endpoint(service_named(entry.at("service")),
                                               {.region = entry.at("region"),
                                                .fips = entry.at("fips"),
                                                .dual_stack = entry.at("dual_stack")});
    const std::string bucket = entry.at("bucket");
    const Url url = bucket.empty() ? endpoint.url : object_url(endpoint, {bucket, ""});
    std::string text = url.text();
    if (url.path == "/") text.pop_back();
    EXPECT_EQ(text, entry.at("url").get<std::string>()) << entry.dump();
  }
}

TEST(Endpoint, OnesOwn) {
  const Endpoint endpoint =
      resolve_endpoint(Service::s3, {.region = "us-east-1", .url = "http://localhost:9000/prefix"});
  EXPECT_EQ(object_url(endpoint, {"bucket", "a b/c"}).text(),
            "http://localhost:9000/prefix/bucket/a%20b/c");
  EXPECT_THAT(error_text([] {
                (void)resolve_endpoint(Service::s3,
                                       {.region = "us-east-1", .fips = true, .url = "http://x"});
              }),
              HasSubstr("exclude each other"));
  for (const char* region : {"", "here", "us east-1", "us-east-1.evil.com", "US-EAST-1", "a-b-c"})
    EXPECT_THAT(error_text([&] { (void)resolve_endpoint(Service::sts, {.region = region}); }),
                HasSubstr("no name of an AWS region"))
        << region;
}

TEST(Endpoint, NamesInS3) {
  const S3Name name = parse_s3_name("s3://my-bucket/a/b c");
  EXPECT_EQ(name.bucket, "my-bucket");
  EXPECT_EQ(name.key, "a/b c");
  EXPECT_EQ(parse_s3_name("s3://my-bucket").key, "");
  for (const char* wrong : {"my-bucket/a", "s3:///a", "s3://ab/c", "s3://My-Bucket/c",
                            "s3://a..b/c", "s3://-ab/c", "s3://abc./c", "s3://a_b/c"})
    EXPECT_THAT(error_text([&] { (void)parse_s3_name(wrong); }), HasSubstr("s3://BUCKET/KEY"))
        << wrong;
  EXPECT_THROW((void)parse_s3_name("s3://bucket/" + std::string(1025, 'x')), Error);
}

class SessionSettings : public ::testing::Test {
 protected:
  Session session(std::map<std::string, std::string, std::less<>> variables,
                  SessionOptions options = {}) {
    std::ofstream(directory_ / "config") << config_;
    variables.emplace("AWS_CONFIG_FILE", directory_ / "config");
    variables.emplace("AWS_SHARED_CREDENTIALS_FILE", directory_ / "credentials");
    return Session(environment_of(std::move(variables)), std::move(options));
  }
  std::string s3_url(const Session& s) {
    return s.endpoint_options(Service::s3).url.value_or("none");
  }
  testing::TemporaryDirectory directory_;
  std::string config_;
};

TEST_F(SessionSettings, TakeTheRegionFromItsFirstSource) {
  EXPECT_THAT(error_text([&] { session({}); }), HasSubstr("no AWS region"));
  config_ = "[default]\nregion = eu-west-1 # home\n[profile x]\nregion=ap-south-1\n";
  EXPECT_EQ(session({}).region(), "eu-west-1");
  EXPECT_EQ(session({{"AWS_PROFILE", "x"}}).region(), "ap-south-1");
  EXPECT_EQ(session({{"AWS_DEFAULT_REGION", "us-west-2"}}).region(), "us-west-2");
  EXPECT_EQ(session({{"AWS_DEFAULT_REGION", "us-west-2"}, {"AWS_REGION", "us-east-2"}}).region(),
            "us-east-2");
  EXPECT_EQ(session({{"AWS_REGION", "us-east-2"}}, {.region = "sa-east-1"}).region(), "sa-east-1");
}

TEST_F(SessionSettings, TakeEndpointsFromTheirFirstSource) {
  config_ =
      "[default]\nregion = us-east-1\nendpoint_url = http://profile\nservices = mine\n"
      "[services mine]\ns3 =\n  endpoint_url = http://services\n  other = x\n";
  EXPECT_EQ(s3_url(session({})), "http://services");
  EXPECT_EQ(session({}).endpoint_options(Service::logs).url, "http://profile");
  EXPECT_EQ(s3_url(session({{"AWS_ENDPOINT_URL", "http://all"}})), "http://all");
  EXPECT_EQ(
      s3_url(session({{"AWS_ENDPOINT_URL", "http://all"}, {"AWS_ENDPOINT_URL_S3", "http://s3"}})),
      "http://s3");
  EXPECT_EQ(session({{"AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", "http://l"}})
                .endpoint_options(Service::logs)
                .url,
            "http://l");
  EXPECT_EQ(s3_url(session({{"AWS_ENDPOINT_URL", "http://all"}}, {.endpoint_url = "http://word"})),
            "http://word");
  EXPECT_EQ(s3_url(session({{"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"}})), "none");
  EXPECT_TRUE(session({{"AWS_USE_FIPS_ENDPOINT", "true"}}).endpoint_options(Service::s3).fips);
}

TEST_F(SessionSettings, FilesThatAreNone) {
  config_ = "[default]\nregion us-east-1\n";
  EXPECT_THAT(error_text([&] { session({}); }), HasSubstr("line 2 is not KEY = VALUE"));
  config_ = "region = us-east-1\n";
  EXPECT_THAT(error_text([&] { session({}); }), HasSubstr("line 1 stands before any [section]"));
  config_ = "[default\n";
  EXPECT_THAT(error_text([&] { session({}); }), HasSubstr("has no ']'"));
  config_ = "";
  EXPECT_THAT(
      error_text([&] { session({{"AWS_REGION", "us-east-1"}, {"AWS_MAX_ATTEMPTS", "x"}}); }),
      HasSubstr("1 to 100"));
}

}  // namespace
}  // namespace shoal::sagemaker
