#include "shoal/sagemaker/rest/signer.h"

#include <cstdlib>

#include "support/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json.h"

namespace shoal::sagemaker {
namespace {

using nlohmann::json;

struct Vector {
  const char *name, *method, *target;
  Headers headers;
  const char *body, *signature;
  const char* token = "";
};

HttpRequest request_of(const Vector& vector) {
  HttpRequest request;
  request.method = vector.method;
  request.url.host = "example.amazonaws.com";
  const std::string target = vector.target;
  const std::size_t question = std::min(target.find('?'), target.size());
  request.url.path = target.substr(0, question);
  request.url.query = target.substr(std::min(question + 1, target.size()));
  request.headers = vector.headers;
  request.body = vector.body;
  return request;
}

std::string signature_in(const std::string& text, const std::string& before) {
  return text.substr(text.find(before) + before.size());
}

const std::string kUnreserved =
    "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const std::string kUnreservedPath = "/" + kUnreserved;
const std::string kUnreservedQuery = "/?" + kUnreserved + "=" + kUnreserved;
constexpr const char* kToken =
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPf"
    "IeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7W"
    "Z0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8F"
    "DrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";
constexpr const char* kFormHash =
    "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";

// Amazon's signing test suite: its requests, and their signatures in the header.
const Vector kSuite[] = {
    {"get-vanilla",
     "GET",
     "/",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-header-key-duplicate",
     "GET",
     "/",
     {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}},
     "",
     "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
    {"get-header-value-multiline",
     "GET",
     "/",
     {{"My-Header1", "value1\n  value2\n     value3"}},
     "",
     "cfd34249e4b1c8d6b91ef74165d41a32e5fab3306300901bb65a51a73575eefd"},
    {"get-header-value-order",
     "GET",
     "/",
     {{"My-Header1", "value4"},
      {"My-Header1", "value1"},
      {"My-Header1", "value3"},
      {"My-Header1", "value2"}},
     "",
     "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
    {"get-header-value-trim",
     "GET",
     "/",
     {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
     "",
     "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
    {"get-relative-normalized",
     "GET",
     "/example/..",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-relative-relative-normalized",
     "GET",
     "/example1/example2/../..",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-slash-dot-slash-normalized",
     "GET",
     "/./",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-slash-normalized",
     "GET",
     "//",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-slash-pointless-dot-normalized",
     "GET",
     "/./example",
     {},
     "",
     "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5"},
    {"get-slashes-normalized",
     "GET",
     "//example//",
     {},
     "",
     "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84"},
    {"get-space-normalized",
     "GET",
     "/example space/",
     {},
     "",
     "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
    {"get-unreserved",
     "GET",
     kUnreservedPath.c_str(),
     {},
     "",
     "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
    {"get-utf8",
     "GET",
     "/\u1234",
     {},
     "",
     "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
    {"get-vanilla-empty-query-key",
     "GET",
     "/?Param1=value1",
     {},
     "",
     "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
    {"get-vanilla-query-order-encoded",
     "GET",
     "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
     {},
     "",
     "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
    {"get-vanilla-query-order-key-case",
     "GET",
     "/?Param2=value2&Param1=value1",
     {},
     "",
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-vanilla-query-unreserved",
     "GET",
     kUnreservedQuery.c_str(),
     {},
     "",
     "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
    {"get-vanilla-utf8-query",
     "GET",
     "/?\u1234=bar",
     {},
     "",
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
    {"get-vanilla-with-session-token",
     "GET",
     "/",
     {},
     "",
     "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
     "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"},
    {"post-header-key-sort",
     "POST",
     "/",
     {{"My-Header1", "value1"}},
     "",
     "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
    {"post-header-value-case",
     "POST",
     "/",
     {{"My-Header1", "VALUE1"}},
     "",
     "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
    {"post-sts-header-before",
     "POST",
     "/",
     {},
     "",
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
     kToken},
    {"post-vanilla",
     "POST",
     "/",
     {},
     "",
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
    {"post-vanilla-query",
     "POST",
     "/?Param1=value1",
     {},
     "",
     "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
    {"post-x-www-form-urlencoded",
     "POST",
     "/",
     {{"Content-Type", "application/x-www-form-urlencoded"},
      {"Content-Length", "13"},
      {"X-Amz-Content-Sha256", kFormHash}},
     "Param1=value1",
     "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b"},
    {"post-x-www-form-urlencoded-parameters",
     "POST",
     "/",
     {{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"},
      {"Content-Length", "13"},
      {"X-Amz-Content-Sha256", kFormHash}},
     "Param1=value1",
     "328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422"},
};

TEST(Signer, AmazonsTestSuite) {
  const Signing signing{
      .region = "us-east-1", .service = "service", .time = *parse_time("2015-08-30T12:36:00Z")};
  for (const Vector& vector : kSuite) {
    SCOPED_TRACE(vector.name);
    const Credentials credentials{.access_key = "AKIDEXAMPLE",
                                  .secret_key = Secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
                                  .session_token = Secret(vector.token)};
    HttpRequest request = request_of(vector);
    for (int again = 0; again < 2; ++again) {
      sign(request, credentials, signing);
      EXPECT_EQ(signature_in(*find_header(request.headers, "Authorization"), "Signature="),
                vector.signature)
          << canonical_request(request, signing, sha256_hex(vector.body));
    }
  }
}

// The examples are from S3's API reference, "Examples: Signature Calculations in AWS
// Signature Version 4".
TEST(Signer, ExamplesOfS3sReference) {
  const Credentials credentials{.access_key = "AKIAIOSFODNN7EXAMPLE",
                                .secret_key = Secret("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")};
  const Signing signing{.region = "us-east-1",
                        .service = "s3",
                        .time = *parse_time("2013-05-24T00:00:00Z"),
                        .s3 = true};
  const auto signed_by = [&](const char* method, const char* path, const char* query,
                             Headers headers, const char* body) {
    HttpRequest request;
    request.method = method;
    request.url.host = "examplebucket.s3.amazonaws.com";
    request.url.path = path;
    request.url.query = query;
    request.headers = std::move(headers);
    request.body = body;
    sign(request, credentials, signing);
    return signature_in(*find_header(request.headers, "Authorization"), "Signature=");
  };
  EXPECT_EQ(signed_by("GET", "/test.txt", "", {{"Range", "bytes=0-9"}}, ""),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(signed_by("PUT", "/test%24file.text", "",
                      {{"Date", "Fri, 24 May 2013 00:00:00 GMT"},
                       {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                      "Welcome to Amazon S3."),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(signed_by("GET", "/", "lifecycle", {}, ""),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signed_by("GET", "/", "max-keys=2&prefix=J", {}, ""),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// botocore's signatures of the same requests (tools/golden/make_aws.py). Some have unsorted
// queries, parameters without a value, or '+' in names, which libcurl 7.88 signs wrongly.
TEST(Signer, SignsAsBotocore) {
  const json golden = read_json_file(testing::golden_path("aws.json"));
  ASSERT_GT(golden.at("signatures").size(), 10U);
  for (const json& entry : golden.at("signatures")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const std::string body = entry.at("body");
    HttpRequest request;
    request.method = entry.at("method");
    request.url = parse_url(entry.at("url").get<std::string>(), "golden");
    for (const json& header : entry.at("headers"))
      request.headers.emplace_back(header[0].get<std::string>(), header[1].get<std::string>());
    request.body = body;
    const Credentials credentials{.access_key = entry.at("access_key"),
                                  .secret_key = Secret(entry.at("secret_key")),
                                  .session_token = Secret(entry.at("token"))};
    const Signing signing{.region = entry.at("region"),
                          .service = entry.at("service"),
                          .time = *parse_time(entry.at("time").get<std::string>()),
                          .s3 = entry.at("s3")};
    sign(request, credentials, signing);
    EXPECT_EQ(*find_header(request.headers, "Authorization"),
              entry.at("authorization").get<std::string>());
  }
}

}  // namespace
}  // namespace shoal::sagemaker
