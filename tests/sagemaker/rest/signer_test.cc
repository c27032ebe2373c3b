#include "shoal/sagemaker/rest/signer.h"

#include <cstdlib>

#include "support/error_text.h"
#include "support/golden.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json.h"

namespace shoal::sagemaker {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Vector {
  const char *name, *method, *target;
  Headers headers;
  const char *body, *signature, *presigned;
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

// Amazon's signing test suite: its requests, and the signatures in the header and in the query.
const Vector kSuite[] = {
    {"get-vanilla",
     "GET",
     "/",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
     "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d"},
    {"get-header-key-duplicate",
     "GET",
     "/",
     {{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}},
     "",
     "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
     "3349ee0b81b4b589da0ff28a395c3591e04de515651dd74f298fa992d1507a97"},
    {"get-header-value-multiline",
     "GET",
     "/",
     {{"My-Header1", "value1\n  value2\n     value3"}},
     "",
     "cfd34249e4b1c8d6b91ef74165d41a32e5fab3306300901bb65a51a73575eefd",
     "e6f5def831211aca02987a44b96826706278c7bc078112ae0263659c5b2f2d56"},
    {"get-header-value-order",
     "GET",
     "/",
     {{"My-Header1", "value4"},
      {"My-Header1", "value1"},
      {"My-Header1", "value3"},
      {"My-Header1", "value2"}},
     "",
     "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01",
     "313720e71ca6202fdcfa9b20f88de01a4eb0638a83c833b1c184359a4eda864e"},
    {"get-header-value-trim",
     "GET",
     "/",
     {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
     "",
     "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
     "e7bb0fd515e125e1aec2ecc4c0c17484fb06f6846b927c35e46005dd3df3acd4"},
    {"get-relative-normalized",
     "GET",
     "/example/..",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
     "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d"},
    {"get-relative-relative-normalized",
     "GET",
     "/example1/example2/../..",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
     "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d"},
    {"get-slash-dot-slash-normalized",
     "GET",
     "/./",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
     "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d"},
    {"get-slash-normalized",
     "GET",
     "//",
     {},
     "",
     "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
     "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d"},
    {"get-slash-pointless-dot-normalized",
     "GET",
     "/./example",
     {},
     "",
     "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5",
     "35034b1a0bdd969f346975386daf8aedfd4976573b8348cf4f67eaa41c5857de"},
    {"get-slashes-normalized",
     "GET",
     "//example//",
     {},
     "",
     "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
     "c1834e8fb0307243711f0f907f6ab7311ed300d87f13792d7ee4da89ab93e082"},
    {"get-space-normalized",
     "GET",
     "/example space/",
     {},
     "",
     "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741",
     "7a1f416954786484c9824d93c1f26ef64acb9b1b6c9154d08c9f07d0e394abf6"},
    {"get-unreserved",
     "GET",
     kUnreservedPath.c_str(),
     {},
     "",
     "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
     "95968482db1b9e0fadef6efc1bd24689f77c77d9ef56919c96a28cc92e0d6005"},
    {"get-utf8",
     "GET",
     "/\u1234",
     {},
     "",
     "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
     "10eae3f14a260bd3911cc6d008d3c576d143b05b62f09782a7a4b37f52178e44"},
    {"get-vanilla-empty-query-key",
     "GET",
     "/?Param1=value1",
     {},
     "",
     "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
     "49096700cbbaa5753443850f40df10f904fc2fdb544dc9512203cc77c471a9de"},
    {"get-vanilla-query-order-encoded",
     "GET",
     "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
     {},
     "",
     "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
     "c5f1848ceec943ac2ca68ee720460c23aaae30a2300586597ada94c4a65e4787"},
    {"get-vanilla-query-order-key-case",
     "GET",
     "/?Param2=value2&Param1=value1",
     {},
     "",
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
     "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5"},
    {"get-vanilla-query-unreserved",
     "GET",
     kUnreservedQuery.c_str(),
     {},
     "",
     "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
     "8e76a88a7433637b12778d5592799b29ad21ecd6cf6325051c21d86f0acda2bf"},
    {"get-vanilla-utf8-query",
     "GET",
     "/?\u1234=bar",
     {},
     "",
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
     "0bdd809b1519ac4f0c1dc3540e2cc46bd0c7f778eda408b2ebf3b913d21ff600"},
    {"get-vanilla-with-session-token",
     "GET",
     "/",
     {},
     "",
     "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8",
     "7ff2b50b376cb4d151970630573d6291dc128cc5c2a12ffb237f73cc53f67b6c",
     "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267"},
    {"post-header-key-sort",
     "POST",
     "/",
     {{"My-Header1", "value1"}},
     "",
     "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
     "c09d07e0d55871f10f2a6d350d994acf6825a3cae70673d7def55616e6119dd7"},
    {"post-header-value-case",
     "POST",
     "/",
     {{"My-Header1", "VALUE1"}},
     "",
     "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d",
     "0698bc9e4f7f9139065ba2909c0e99da257e8e2a42492a097bcd46d792391fed"},
    {"post-sts-header-before",
     "POST",
     "/",
     {},
     "",
     "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead",
     "46c2e3c63c1dbe7d39f8ada16fe7f001c1f56c5791441565323677f96308871c",
     kToken},
    {"post-vanilla",
     "POST",
     "/",
     {},
     "",
     "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
     "2ce6e6d2e0cf2f9d1b55fafec88cd20574c31dc2e7631979f71ba2310083e95b"},
    {"post-vanilla-query",
     "POST",
     "/?Param1=value1",
     {},
     "",
     "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
     "a9ef26247f293bffe40eeff86a0480ba8c14d31503b2e0c3399e3a16bf1a3682"},
    {"post-x-www-form-urlencoded",
     "POST",
     "/",
     {{"Content-Type", "application/x-www-form-urlencoded"},
      {"Content-Length", "13"},
      {"X-Amz-Content-Sha256", kFormHash}},
     "Param1=value1",
     "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
     ""},
    {"post-x-www-form-urlencoded-parameters",
     "POST",
     "/",
     {{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"},
      {"Content-Length", "13"},
      {"X-Amz-Content-Sha256", kFormHash}},
     "Param1=value1",
     "328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422",
     ""},
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
    if (*vector.presigned != '\0') {
      EXPECT_EQ(
          signature_in(presign(request, credentials, signing, 3600).query, "X-Amz-Signature="),
          vector.presigned);
    }
    for (int again = 0; again < 2; ++again) {
      sign(request, credentials, signing);
      EXPECT_EQ(signature_in(*find_header(request.headers, "Authorization"), "Signature="),
                vector.signature)
          << canonical_request(request, signing, sha256_hex(vector.body));
    }
  }
}

// "Examples: Signature Calculations in AWS Signature Version 4" of S3's API reference.
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
  HttpRequest request;
  request.url.host = "examplebucket.s3.amazonaws.com";
  request.url.path = "/test.txt";
  EXPECT_EQ(signature_in(presign(request, credentials, signing, 86400).query, "X-Amz-Signature="),
            "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
}

// What botocore makes of the same requests (tools/golden/make_aws.py): among them queries that are
// not sorted, parameters without a value, '+' in names: what libcurl 7.88 signs wrongly.
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
    if (entry.contains("presigned")) {
      EXPECT_EQ(signature_in(presign(request, credentials, signing, entry.at("expires")).query,
                             "X-Amz-Signature="),
                entry.at("presigned").get<std::string>());
      continue;
    }
    sign(request, credentials, signing);
    EXPECT_EQ(*find_header(request.headers, "Authorization"),
              entry.at("authorization").get<std::string>());
  }
}

TEST(Signer, RefusesUrlsThatLastTooLong) {
  const Credentials credentials{.access_key = "A", .secret_key = Secret("B")};
  const Signing signing{.region = "us-east-1", .service = "s3", .time = from_epoch(0), .s3 = true};
  EXPECT_THAT(test::error_text([&] { (void)presign({}, credentials, signing, 604801); }),
              HasSubstr("604800"));
}

}  // namespace
}  // namespace shoal::sagemaker
