#include "shoal/sagemaker/rest/client.h"

#include "sagemaker/rest/rig.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/log.h"

namespace shoal::sagemaker {
namespace {

using nlohmann::json;

HttpResponse reply(int status, std::string body, Headers headers = {}) {
  return {.status = status, .headers = std::move(headers), .body = std::move(body)};
}
HttpResponse refused(int status, const std::string& type, const std::string& message = "why") {
  return reply(status, json{{"__type", type}, {"message", message}}.dump(),
               {{"x-amzn-requestid", "r-1"}});
}
const HttpResponse kGood = reply(200, R"({"ok": 1})");
const TransportError kBroken("it broke", "", true, true);
const TransportError kNotSent("no connection", "", false, true);

class Client : public ::testing::Test {
 protected:
  using Steps = std::vector<ScriptedTransport::Step>;
  ServiceClient client(Steps steps, RetryOptions retry) {
    transport_ = std::make_shared<ScriptedTransport>(std::move(steps));
    return {{.transport = transport_,
             .credentials = credentials_,
             .retry = std::move(retry),
             .now = [this] { return now_; }},
            resolve_endpoint(Service::sagemaker, {.region = "us-east-1"})};
  }
  ServiceClient client(Steps steps) { return client(std::move(steps), no_waiting(&waits_)); }
  json call(const ServiceClient& with, bool repeatable = true) {
    return with.call_json("SageMaker", "DescribeTrainingJob", {{"a", 1}}, repeatable);
  }

  std::shared_ptr<CredentialProvider> credentials_ = example_keys();
  std::shared_ptr<ScriptedTransport> transport_;
  std::vector<double> waits_;
  Moment now_ = from_epoch(1'700'000'000);
};

TEST_F(Client, SendsWhatTheServiceWants) {
  EXPECT_EQ(call(client({kGood})), json({{"ok", 1}}));
  const SentRequest& sent = transport_->sent.at(0);
  EXPECT_EQ(sent.request.url.text(), "https://api.sagemaker.us-east-1.amazonaws.com/");
  EXPECT_EQ(sent.header("X-Amz-Target"), "SageMaker.DescribeTrainingJob");
  EXPECT_EQ(sent.header("Content-Type"), "application/x-amz-json-1.1");
  EXPECT_THAT(sent.header("Authorization"), HasSubstr("/us-east-1/sagemaker/aws4_request"));
  EXPECT_EQ(sent.body, R"({"a":1})");
  EXPECT_FALSE(sent.request.allow_plain);
}

TEST_F(Client, RetriesTemporaryErrors) {
  const Steps passing = {refused(400, "ThrottlingException"),
                         refused(500, "InternalFailure"),
                         kBroken,
                         kNotSent,
                         reply(503, "<html><body>Service Unavailable</body></html>"),
                         refused(400, "SlowDown"),
                         refused(400, "com.amazonaws#TooManyRequestsException:http://x"),
                         reply(429, ""),
                         refused(429, "TooManyRequests"),
                         refused(504, "GatewayTimeout"),
                         refused(400, "IDPCommunicationError")};
  for (const auto& step : passing) {
    waits_.clear();
    EXPECT_EQ(call(client({step, step, kGood})), json({{"ok", 1}}));
    EXPECT_THAT(waits_, ElementsAre(1, 2));
  }
  EXPECT_THAT(error_text([&] { call(client({refused(500, "InternalFailure")})); }),
              HasSubstr("InternalFailure: why (HTTP 500, request r-1); try again later"));
  EXPECT_EQ(transport_->sent.size(), 3U);
  EXPECT_THAT(error_text([&] { call(client({kBroken})); }), HasSubstr("it broke"));
  EXPECT_EQ(transport_->sent.size(), 3U);
}

TEST_F(Client, TriesNothingElseAgain) {
  for (const char* code : {"ValidationException", "AccessDeniedException", "ResourceLimitExceeded",
                           "ResourceInUse", "UnknownOperationException"}) {
    EXPECT_THAT(error_text([&] { call(client({refused(400, code), kGood})); }), HasSubstr(code));
    EXPECT_EQ(transport_->sent.size(), 1U) << code;
  }
  const TransportError certificate("its certificate is not known", "install one", false, false);
  EXPECT_THAT(error_text([&] { call(client({certificate, kGood})); }), HasSubstr("certificate"));
  EXPECT_EQ(transport_->sent.size(), 1U);
}

TEST_F(Client, DoesNotRepeatRequestsThatMayHaveSucceeded) {
  for (const ScriptedTransport::Step& step : Steps{kNotSent, refused(400, "ThrottlingException")})
    EXPECT_EQ(call(client({step, kGood}), false), json({{"ok", 1}}));
  for (const ScriptedTransport::Step& step : Steps{kBroken, refused(500, "InternalFailure")}) {
    try {
      call(client({step, kGood}), false);
      ADD_FAILURE() << "the request was carried out";
    } catch (const Error& error) {
      EXPECT_TRUE(may_have_been_done(error)) << error.what();
    }
    EXPECT_EQ(transport_->sent.size(), 1U);
    EXPECT_TRUE(transport_->sent[0].request.once);
  }
}

TEST_F(Client, WaitsAsLongAsItIsAsked) {
  RetryOptions retry = no_waiting(&waits_);
  retry.attempts = 8;
  const auto busy = [](const char* name, const char* value) {
    return reply(503, "", {{name, value}});
  };
  call(client({busy("Retry-After", "7"), busy("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT"),
               busy("x-amz-retry-after", "12500"), busy("retry-after", "9999"), busy("a", "b"),
               busy("a", "b"), kGood},
              retry));
  EXPECT_THAT(waits_, ElementsAre(7, 2, 12.5, 20, 16, 20));
}

TEST_F(Client, RenewsKeysThatExpired) {
  int fetched = 0;
  credentials_ = std::make_shared<CredentialProvider>(std::vector<CredentialSource>{[&] {
    return std::optional(
        Credentials{.access_key = fmt::format("A{}", ++fetched),
                    .secret_key = Secret("s"),
                    .expires = std::chrono::system_clock::now() + std::chrono::hours(1)});
  }});
  const HttpResponse expired = refused(400, "ExpiredTokenException", "expired");
  EXPECT_EQ(call(client({expired, kGood})), json({{"ok", 1}}));
  EXPECT_THAT(transport_->sent[0].header("Authorization"), HasSubstr("A1/"));
  EXPECT_THAT(transport_->sent[1].header("Authorization"), HasSubstr("A2/"));
  EXPECT_THAT(error_text([&] { call(client({expired})); }), HasSubstr("renew the credentials"));
  EXPECT_EQ(transport_->sent.size(), 2U) << "renewed once only";
  credentials_ = example_keys();
  EXPECT_THAT(error_text([&] { call(client({expired})); }),
              HasSubstr("renew the credentials (a test)"));
  EXPECT_EQ(transport_->sent.size(), 1U) << "keys of the environment stay what they are";
}

TEST_F(Client, BelievesTheServicesClock) {
  now_ = *parse_time("2024-01-01T10:00:00Z");
  HttpResponse skewed = refused(403, "InvalidSignatureException",
                                "Signature expired: 20240101T100000Z is now earlier than ...");
  skewed.headers.emplace_back("date", "Mon, 01 Jan 2024 11:00:00 GMT");
  const ServiceClient with = client({skewed, kGood});
  call(with);
  EXPECT_EQ(transport_->sent[0].header("X-Amz-Date"), "20240101T100000Z");
  EXPECT_EQ(transport_->sent[1].header("X-Amz-Date"), "20240101T110000Z");
  call(with);
  EXPECT_EQ(transport_->sent[2].header("X-Amz-Date"), "20240101T110000Z") << "remembered";
  EXPECT_THAT(error_text([&] { call(client({skewed})); }), HasSubstr("set this machine's clock"));
  EXPECT_EQ(transport_->sent.size(), 2U);
}

// The answer to HEAD has no body, so it cannot give a reason.
TEST_F(Client, BelievesTheServicesClockWithoutAWord) {
  now_ = *parse_time("2024-01-01T10:00:00Z");
  const auto denied = [](const char* date) { return reply(403, "", {{"date", date}}); };
  call(client({denied("Mon, 01 Jan 2024 11:00:00 GMT"), kGood}));
  EXPECT_EQ(transport_->sent[1].header("X-Amz-Date"), "20240101T110000Z");
  EXPECT_THAT(error_text([&] { call(client({denied("Mon, 01 Jan 2024 10:03:00 GMT"), kGood})); }),
              HasSubstr("permission"));
  EXPECT_EQ(transport_->sent.size(), 1U) << "the clocks agree, so permission is missing";
}

TEST_F(Client, RenewsKeysWithoutAWord) {
  int fetched = 0;
  credentials_ = std::make_shared<CredentialProvider>(std::vector<CredentialSource>{[&] {
    return std::optional(
        Credentials{.access_key = fmt::format("A{}", ++fetched), .secret_key = Secret("s")});
  }});
  call(client({reply(400, ""), kGood}));
  EXPECT_THAT(transport_->sent[1].header("Authorization"), HasSubstr("A2/"));
}

TEST_F(Client, ErrorsOfEveryForm) {
  const auto text_of = [&](HttpResponse response) {
    RetryOptions once = no_waiting();
    once.attempts = 1;
    return error_text([&] { call(client({std::move(response)}, once)); });
  };
  EXPECT_EQ(text_of(refused(400, "AccessDeniedException",
                            "User: x is not authorized to perform: sagemaker:Describe")),
            "SageMaker DescribeTrainingJob: AccessDeniedException: User: x is not authorized to "
            "perform: sagemaker:Describe (HTTP 400, request r-1); give the credentials (a test) "
            "the permission for SageMaker DescribeTrainingJob");
  EXPECT_EQ(text_of(reply(403,
                          "<ErrorResponse><Error><Code>SignatureDoesNotMatch</Code><Message>no\n"
                          "match</Message></Error><RequestId>x-9</RequestId></ErrorResponse>")),
            "SageMaker DescribeTrainingJob: SignatureDoesNotMatch: no match (HTTP 403, request "
            "x-9); check the credentials (a test): access key, secret and session token");
  EXPECT_EQ(
      text_of(reply(502, "<html><head><title>502</title></head>\n<body>Bad Gateway</body></html>")),
      "SageMaker DescribeTrainingJob: 502 Bad Gateway (HTTP 502); try again later");
  EXPECT_EQ(text_of(reply(400, R"({"message": "capital"})", {{"x-amzn-errortype", "Odd:x"}})),
            "SageMaker DescribeTrainingJob: Odd: capital (HTTP 400)");
  EXPECT_EQ(text_of(reply(418, "")),
            "SageMaker DescribeTrainingJob: the request failed (HTTP 418)");
  EXPECT_THAT(text_of(reply(200, "{\"a\": ")), HasSubstr("DescribeTrainingJob's answer"));
  EXPECT_THAT(text_of(reply(200, "[1]")), HasSubstr("no JSON object"));
  const std::string long_text = text_of(reply(500, std::string(100'000, 'x')));
  EXPECT_LT(long_text.size(), 500U);
  // A service's message is not a proxy's page: all of it is kept.
  const std::string problems = "2 problems: 'x<y' is too long; " + std::string(1000, '.') + " end";
  EXPECT_THAT(text_of(refused(400, "ValidationException", problems)), HasSubstr(problems));
  std::string accents;
  for (int i = 0; i < 300; ++i) accents += "\xc3\xa9";
  EXPECT_THAT(text_of(reply(400, "x" + accents)), HasSubstr("\xc3\xa9... (HTTP 400)"));
}

TEST_F(Client, SaysNoSecrets) {
  credentials_ =
      std::make_shared<CredentialProvider>(Credentials{.access_key = "AKIA",
                                                       .secret_key = Secret("sEcReT-1"),
                                                       .session_token = Secret("sEcReT-2"),
                                                       .source = "a test"});
  FakeAws aws;
  aws.fail_next({.operation = "SageMaker DescribeTrainingJob", .reply = {.status = 500}});
  log::set_level(log::Level::debug);
  ::testing::internal::CaptureStderr();
  const ServiceClient real(
      {.transport = make_curl_transport(), .credentials = credentials_, .retry = no_waiting()},
      resolve_endpoint(Service::sagemaker, {.region = "us-east-1", .url = aws.url()}));
  const std::string thrown = error_text([&] { call(real); });
  const std::string logged = ::testing::internal::GetCapturedStderr();
  log::set_level(log::Level::info);
  EXPECT_THAT(logged, HasSubstr("POST http://127.0.0.1"));
  EXPECT_THAT(logged, Not(HasSubstr("sEcReT")));
  EXPECT_THAT(logged, Not(HasSubstr("Signature")));
  EXPECT_THAT(thrown, AllOf(HasSubstr("UnrecognizedClientException"), Not(HasSubstr("sEcReT"))));
}

}  // namespace
}  // namespace shoal::sagemaker
