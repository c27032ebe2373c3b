#include "shoal/sagemaker/rest/credentials.h"

#include <filesystem>
#include <fstream>

#define SHOAL_TEST_COUNTS_MEMORY
#include "sagemaker/rest/rig.h"
#include "support/budget.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/log.h"
#include "shoal/sagemaker/rest/profile.h"
#include "shoal/sagemaker/rest/service_error.h"
#include "shoal/sagemaker/rest/sts.h"

namespace shoal::sagemaker {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string, std::less<>>;

class Chain : public ::testing::Test {
 protected:
  // The provider chain with only these variables, besides those for the files and the machine.
  std::shared_ptr<CredentialProvider> chain(Variables variables, ChainOptions options = {}) {
    std::ofstream(directory_ / "config") << config_;
    std::ofstream(directory_ / "credentials") << credentials_;
    variables.emplace("AWS_CONFIG_FILE", directory_ / "config");
    variables.emplace("AWS_SHARED_CREDENTIALS_FILE", directory_ / "credentials");
    variables.emplace("AWS_EC2_METADATA_DISABLED", "true");
    options.sleep = [](double) {};
    options.sts_endpoint_url = aws_.url();
    return make_credential_chain(environment_of(std::move(variables)), make_curl_transport(),
                                 std::move(options));
  }
  std::string refusal(Variables variables, ChainOptions options = {}) {
    return error_text([&] { chain(std::move(variables), std::move(options))->get(); });
  }
  static std::string keys(const std::string& id, const char* token = "Token") {
    return json{{"AccessKeyId", id},
                {"SecretAccessKey", "hidden"},
                {token, "session"},
                {"Expiration", "2099-01-01T00:00:00Z"}}
        .dump();
  }

  testing::TemporaryDirectory directory_;
  FakeAws aws_;
  std::string config_, credentials_;
  const Variables environment_keys_ = {{"AWS_ACCESS_KEY_ID", "AKIAENV"},
                                       {"AWS_SECRET_ACCESS_KEY", "secret"},
                                       {"AWS_SESSION_TOKEN", "token"}};
};

TEST_F(Chain, EnvironmentFirstUnlessAProfileIsNamed) {
  credentials_ =
      "[default]\naws_access_key_id = AKIADEFAULT\naws_secret_access_key = s\n"
      "[dev]\naws_access_key_id = AKIADEV\naws_secret_access_key = s\n";
  const Credentials found = chain(environment_keys_)->get();
  EXPECT_EQ(found.access_key, "AKIAENV");
  EXPECT_EQ(found.secret_key.reveal(), "secret");
  EXPECT_EQ(found.session_token.reveal(), "token");
  EXPECT_EQ(found.source, "environment");
  EXPECT_EQ(chain(environment_keys_, {.profile = "dev"})->get().access_key, "AKIADEV");
  EXPECT_EQ(chain({})->get().access_key, "AKIADEFAULT");
  EXPECT_EQ(chain({{"AWS_PROFILE", "dev"}})->get().source, "profile dev");
  EXPECT_THAT(refusal({{"AWS_ACCESS_KEY_ID", "A"}}), HasSubstr("only the first is set"));
}

TEST_F(Chain, NothingAnywhere) {
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("no AWS credentials"), HasSubstr("AWS_PROFILE")));
  EXPECT_THAT(refusal({{"AWS_PROFILE", "gone"}}), HasSubstr("no AWS profile 'gone'"));
}

TEST_F(Chain, CredentialsFileGoesBeforeConfig) {
  config_ = "[default]\naws_access_key_id = AKIACONFIG\naws_secret_access_key = s\n";
  EXPECT_EQ(chain({})->get().access_key, "AKIACONFIG");
  credentials_ = "[default]\naws_access_key_id = AKIAFILE ; mine\naws_secret_access_key = s\n";
  EXPECT_EQ(chain({})->get().access_key, "AKIAFILE");
}

TEST_F(Chain, RoleOfASourceProfile) {
  config_ =
      "[profile job]\nrole_arn = arn:aws:iam::123456789012:role/job\nsource_profile = base\n"
      "duration_seconds = 900\n"
      "[profile far]\nrole_arn = arn:aws:iam::123456789012:role/far\nsource_profile = job\n"
      "[profile round]\nrole_arn = arn:x\nsource_profile = about\n"
      "[profile about]\nrole_arn = arn:x\nsource_profile = round\n"
      "[profile code]\nrole_arn = arn:x\nsource_profile = base\nmfa_serial = arn:mfa\n"
      "[profile long]\nrole_arn = arn:x\nsource_profile = base\nduration_seconds = 60\n";
  credentials_ = std::string("[base]\naws_access_key_id = ") + FakeAws::kKey +
                 "\naws_secret_access_key = " + FakeAws::kSecret + "\n";
  const Credentials found = chain({{"AWS_PROFILE", "job"}})->get();
  EXPECT_EQ(found.session_token.reveal(), "token of arn:aws:iam::123456789012:role/job");
  EXPECT_EQ(found.source, "profile job, role arn:aws:iam::123456789012:role/job");
  EXPECT_EQ(aws_.calls("STS AssumeRole"), 1);
  EXPECT_EQ(chain({{"AWS_PROFILE", "far"}})->get().session_token.reveal(),
            "token of arn:aws:iam::123456789012:role/far");
  EXPECT_EQ(aws_.calls("STS AssumeRole"), 3);
  EXPECT_THAT(refusal({{"AWS_PROFILE", "round"}}), HasSubstr("leads back"));
  EXPECT_THAT(refusal({{"AWS_PROFILE", "code"}}), HasSubstr("mfa_serial"));
  EXPECT_THAT(refusal({{"AWS_PROFILE", "long"}}), HasSubstr("900 to 43200"));
}

// As in the SDKs, the keys of a source profile take precedence over a role in it.
TEST_F(Chain, KeysOfASourceProfileGoBeforeItsRole) {
  config_ =
      "[profile job]\nrole_arn = arn:aws:iam::123456789012:role/job\nsource_profile = base\n"
      "[profile base]\nrole_arn = arn:aws:iam::123456789012:role/base\nsource_profile = base\n";
  credentials_ = std::string("[base]\naws_access_key_id = ") + FakeAws::kKey +
                 "\naws_secret_access_key = " + FakeAws::kSecret + "\n";
  EXPECT_EQ(chain({{"AWS_PROFILE", "job"}})->get().session_token.reveal(),
            "token of arn:aws:iam::123456789012:role/job");
  EXPECT_EQ(aws_.calls("STS AssumeRole"), 1);
  EXPECT_EQ(chain({{"AWS_PROFILE", "base"}})->get().session_token.reveal(),
            "token of arn:aws:iam::123456789012:role/base");
}

TEST_F(Chain, ATokenIsOfItsOwnFile) {
  config_ = "[default]\naws_session_token = of another key\n";
  credentials_ = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = s\n";
  EXPECT_EQ(chain({})->get().session_token.reveal(), "");
  credentials_ += "aws_session_token = its own\n";
  EXPECT_EQ(chain({})->get().session_token.reveal(), "its own");
}

TEST_F(Chain, ProfilesInQuotes) {
  config_ = "[profile \"two words\"]\naws_access_key_id = AKIA\naws_secret_access_key = s\n";
  EXPECT_EQ(chain({{"AWS_PROFILE", "two words"}})->get().access_key, "AKIA");
}

TEST_F(Chain, WebIdentityIsNotSigned) {
  std::ofstream(directory_ / "jwt") << "the.web.token\n";
  const Credentials found = chain({{"AWS_WEB_IDENTITY_TOKEN_FILE", directory_ / "jwt"},
                                   {"AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/pod"}})
                                ->get();
  EXPECT_EQ(found.session_token.reveal(), "token of arn:aws:iam::123456789012:role/pod");
  EXPECT_EQ(aws_.calls("STS AssumeRoleWithWebIdentity"), 1);
}

TEST_F(Chain, Process) {
  std::ofstream(directory_ / "keys.json") << keys("AKIAPROCESS", "SessionToken");
  config_ = "[profile p]\ncredential_process = cat '" + (directory_ / "keys.json") +
            "'\n"
            "[profile broken]\ncredential_process = echo '{\"SecretAccessKey\": \"hidden'\n"
            "[profile fails]\ncredential_process = exit 3\n"
            "[profile odd]\ncredential_process = echo '{\"AccessKeyId\": \"A\", "
            "\"SecretAccessKey\": \"hidden\", \"Expiration\": \"tomorrow\"}'\n";
  const Credentials found = chain({{"AWS_PROFILE", "p"}})->get();
  EXPECT_EQ(found.access_key, "AKIAPROCESS");
  EXPECT_TRUE(found.expires.has_value());
  EXPECT_THAT(refusal({{"AWS_PROFILE", "broken"}}),
              AllOf(HasSubstr("no JSON object"), Not(HasSubstr("hidden"))));
  EXPECT_THAT(refusal({{"AWS_PROFILE", "fails"}}), HasSubstr("status 3"));
  EXPECT_THAT(refusal({{"AWS_PROFILE", "odd"}}),
              AllOf(HasSubstr("Expiration is no time"), Not(HasSubstr("hidden"))));
}

TEST_F(Chain, SsoIsRefusedByName) {
  config_ = "[profile sso]\nsso_session = corp\nsso_account_id = 1\n[sso-session corp]\nx = y\n";
  EXPECT_THAT(refusal({{"AWS_PROFILE", "sso"}}),
              AllOf(HasSubstr("SSO"), HasSubstr("aws sso login --profile sso")));
}

TEST_F(Chain, Container) {
  std::ofstream(directory_ / "token") << "from a file\n";
  int calls = 0;
  test::HttpServer server([&](const test::ServedRequest& request) -> test::ServedReply {
    ++calls;
    if (request.path == "/broken") return {.status = 500};
    if (calls == 1) return {.status = 503};
    EXPECT_EQ(request.path, "/creds");
    return {.body = keys("AKIA " + request.header("authorization"))};
  });
  EXPECT_EQ(chain({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/creds"}},
                  {.container_host = server.url()})
                ->get()
                .access_key,
            "AKIA ");
  const std::string full = server.url() + "/creds";
  EXPECT_EQ(chain({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", full},
                   {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "word"}})
                ->get()
                .access_key,
            "AKIA word");
  EXPECT_EQ(chain({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", full},
                   {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", directory_ / "token"}})
                ->get()
                .access_key,
            "AKIA from a file");
  EXPECT_THAT(refusal({{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", ".example.com/x"}}),
              HasSubstr("must begin with '/'"));
  EXPECT_THAT(refusal({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/x"}}),
              HasSubstr("neither https nor this machine"));
  EXPECT_THAT(refusal({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url() + "/broken"}}),
              HasSubstr("HTTP 500"));
}

// Plain http is allowed only for addresses where no other machine can listen.
TEST_F(Chain, HostsOfTheContainersAddress) {
  const auto asks = [](const std::string& url) {
    std::string host;
    const auto transport = std::make_shared<FunctionTransport>([&](const HttpRequest& request) {
      host = request.url.host;
      EXPECT_TRUE(request.direct) << "not through a proxy";
      return HttpResponse{.status = 200, .body = keys("AKIA")};
    });
    const auto chain = make_credential_chain(
        environment_of({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url}}), transport);
    const std::string text = error_text([&] { (void)chain->get(); });
    return host.empty() ? text : host;
  };
  for (const char* host : {"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "localhost",
                           "127.0.0.1", "127.1.2.3", "[::1]"})
    EXPECT_EQ(asks(fmt::format("http://{}/x", host)), host);
  for (const char* host : {"169.254.170.3", "127.0.0.1.example.com", "10.0.0.1", "[fd00:ec2::24]"})
    EXPECT_THAT(asks(fmt::format("http://{}/x", host)), HasSubstr("neither https")) << host;
  EXPECT_EQ(asks("https://10.0.0.1/x"), "10.0.0.1");
}

TEST_F(Chain, MetadataThatGivesNoTokenIsNone) {
  test::HttpServer server([](const test::ServedRequest& request) -> test::ServedReply {
    return {.status = request.method == "PUT" ? 403 : 401};
  });
  EXPECT_THAT(refusal({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url()},
                       {"AWS_EC2_METADATA_DISABLED", "false"}}),
              HasSubstr("no AWS credentials"));
}

TEST_F(Chain, InstanceMetadataOfVersionTwo) {
  bool has_role = true;
  test::HttpServer server([&](const test::ServedRequest& request) -> test::ServedReply {
    if (request.method == "PUT") {
      EXPECT_EQ(request.path, "/latest/api/token");
      EXPECT_EQ(request.header("x-aws-ec2-metadata-token-ttl-seconds"), "21600");
      return {.body = "the-token"};
    }
    if (request.header("x-aws-ec2-metadata-token") != "the-token") return {.status = 401};
    const std::string base = "/latest/meta-data/iam/security-credentials/";
    if (!has_role) return {.status = 404};
    return {.body =
                request.path == base ? "my-role" : keys("AKIA" + request.path.substr(base.size()))};
  });
  const Variables variables = {{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url()},
                               {"AWS_EC2_METADATA_DISABLED", "false"}};
  const Credentials found = chain(variables)->get();
  EXPECT_EQ(found.access_key, "AKIAmy-role");
  EXPECT_EQ(found.source, "instance role my-role");
  has_role = false;
  EXPECT_THAT(refusal(variables), HasSubstr("no AWS credentials"));
  EXPECT_THAT(refusal({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1"},
                       {"AWS_EC2_METADATA_DISABLED", "false"}}),
              HasSubstr("no AWS credentials"));
}

TEST(Provider, RefreshesBeforeExpiry) {
  Moment now = from_epoch(1'000'000);
  int fetched = 0, asked = 0;
  bool fails = false;
  CredentialProvider provider({[] { return std::optional<Credentials>(); },
                               [&]() -> std::optional<Credentials> {
                                 ++asked;
                                 if (fails) throw Error(ErrorCode::io, "the source is down");
                                 ++fetched;
                                 return Credentials{.access_key = fmt::format("A{}", fetched),
                                                    .secret_key = Secret("s"),
                                                    .expires = now + 60min,
                                                    .source = "a test"};
                               }},
                              [&] { return now; });
  EXPECT_EQ(provider.get().access_key, "A1");
  now += 44min;
  EXPECT_EQ(provider.get().access_key, "A1");
  now += 2min;  // 14 minutes are left
  fails = true;
  EXPECT_EQ(provider.get().access_key, "A1") << "the old ones still work";
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(provider.get().access_key, "A1");
  EXPECT_EQ(asked, 2) << "a source that is down is not asked for each request";
  fails = false;
  now += 61s;
  EXPECT_EQ(provider.get().access_key, "A2");
  now += 51min;  // 9 are left
  fails = true;
  EXPECT_THAT(error_text([&] { provider.get(); }), HasSubstr("the source is down"));
  fails = false;
  const Credentials third = provider.get();
  EXPECT_EQ(third.access_key, "A3");
  EXPECT_TRUE(provider.renew(third));
  EXPECT_EQ(provider.get().access_key, "A4");
  EXPECT_TRUE(provider.renew(third)) << "there is something newer already";
  EXPECT_EQ(fetched, 4);
}

// Once a source has given keys, the provider stays with it: if it has none left, no other
// source replaces it.
TEST(Provider, KeepsToItsSource) {
  Moment now = from_epoch(1'000'000);
  bool dry = false;
  CredentialProvider provider(
      {[&]() -> std::optional<Credentials> {
         if (dry) return std::nullopt;
         return Credentials{
             .access_key = "FIRST", .secret_key = Secret("s"), .expires = now + 60min};
       },
       [] { return std::optional(Credentials{.access_key = "OTHER", .secret_key = Secret("s")}); }},
      [&] { return now; });
  EXPECT_EQ(provider.get().access_key, "FIRST");
  dry = true;
  now += 59min;
  EXPECT_THAT(error_text([&] { (void)provider.get(); }), HasSubstr("no AWS credentials"));
}

// A program that watches a job can wait for a source that is down, but not for one that never
// worked.
TEST_F(Chain, KnowsOutages) {
  const auto passes = [](const std::function<void()>& ask) -> std::optional<bool> {
    try {
      ask();
    } catch (const Error& error) {
      return may_pass(error);
    }
    return std::nullopt;
  };
  int status = 200;
  test::HttpServer server([&](const test::ServedRequest& request) -> test::ServedReply {
    if (status != 200) return {.status = status};
    if (request.method == "PUT") return {.body = "the-token"};
    return {.body = request.path.ends_with("/") ? "my-role" : keys("AKIA")};
  });
  const Variables instance = {{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url()},
                              {"AWS_EC2_METADATA_DISABLED", "false"}};
  const Variables container = {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", server.url()}};
  for (const auto& [answer, outage] : {std::pair{503, true}, {500, true}, {429, true}}) {
    status = answer;
    EXPECT_EQ(passes([&] { chain(instance)->get(); }), outage) << answer;
    EXPECT_EQ(passes([&] { chain(container)->get(); }), outage) << answer;
  }
  status = 403;
  EXPECT_EQ(passes([&] { chain(instance)->get(); }), false) << "an instance without metadata";
  EXPECT_EQ(passes([&] { chain(container)->get(); }), false);
  // This source gave keys once and can no longer be reached.
  Moment now = from_epoch(1'000'000);
  bool dry = false;
  CredentialProvider provider({[&]() -> std::optional<Credentials> {
                                if (dry) return std::nullopt;
                                return Credentials{.access_key = "A",
                                                   .secret_key = Secret("s"),
                                                   .expires = now + 60min,
                                                   .source = "a test"};
                              }},
                              [&] { return now; });
  provider.get();
  dry = true;
  now += 55min;
  EXPECT_EQ(passes([&] { provider.get(); }), true);
}

// A source that never gave keys ends the watching program. One that did may give some again.
TEST_F(Chain, AProcessThatGaveSomeMayDoSoAgain) {
  const std::string soon = extended_time(std::chrono::system_clock::now() + 5min);
  const auto write = [&](const std::string& script) {
    std::ofstream(directory_ / "keys.sh") << script;
  };
  config_ = "[default]\ncredential_process = sh '" + (directory_ / "keys.sh") + "'\n";
  const auto source = chain({});
  const auto failure = [&]() -> std::optional<bool> {
    try {
      source->get();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("profile default"));
      return may_pass(error);
    }
    return std::nullopt;
  };
  write("exit 3\n");
  EXPECT_EQ(failure(), false);
  write("echo '{\"AccessKeyId\": \"A\", \"SecretAccessKey\": \"s\", \"Expiration\": \"" + soon +
        "\"}'\n");
  EXPECT_EQ(failure(), std::nullopt);
  for (const char* script : {"exit 3\n", "echo '{'\n", "kill -KILL $$\n"}) {
    write(script);
    EXPECT_EQ(failure(), true) << script;
  }
}

TEST(Provider, SecretsAreWiped) {
  Secret secret("a secret of some length, on the heap");
  const char* const place = secret.reveal().data();
  const std::string_view before(place, 8);
  EXPECT_EQ(before, "a secret");
  Secret moved = std::move(secret);
  EXPECT_EQ(moved.reveal().substr(0, 8), "a secret");
  EXPECT_TRUE(secret.empty());  // NOLINT(bugprone-use-after-move)
  moved = Secret();
  EXPECT_TRUE(moved.empty());
}

// Hostile configurations and answers of services.
TEST(Profile, AHostileConfigurationIsReadInLinearTime) {
  std::string nested = "[default]\n" + std::string(100'000, 'k') + " =\n", many = "[default]\n";
  for (int i = 0; i < 50'000; ++i) {
    nested += fmt::format(" a{} = 1\n", i);
    many += fmt::format("k{} = 1\n", i);
  }
  EXPECT_THAT(testing::within_budget(nested.size(), "one long key",
                                     [&] { (void)parse_sections(nested, "config"); }),
              ::testing::HasSubstr("a key of 100000 bytes; 256 are possible"));
  EXPECT_EQ(testing::within_budget(many.size(), "many keys",
                                   [&] { (void)parse_sections(many, "config"); }),
            "");
}

TEST(ServiceError, AHostileAnswerIsReadInLinearTime) {
  std::string deep, wide = "<Error>";
  for (int i = 0; i < 100'000; ++i) {
    deep += "<a>";
    wide += "<b/>";
  }
  for (const std::string& body : {deep, wide + "</Error>", std::string(1'000'000, '<'),
                                  std::string(1'000'000, '['), std::string(1'000'000, ' ')}) {
    HttpResponse response;
    response.status = 500;
    response.body = body;
    EXPECT_EQ(testing::within_budget(
                  body.size(), body.substr(0, 10),
                  [&] { (void)service_error(response, "CreateTrainingJob", "sagemaker"); }),
              "");
  }
}

}  // namespace
}  // namespace shoal::sagemaker
