// Certificates that do not verify give one line with the reason and the remedy.
#include <algorithm>
#include <fstream>

#include "sagemaker/rest/rig.h"
#include "support/tls_server.h"

namespace shoal::sagemaker {
namespace {

using test::Certificate;
using test::CertificateOptions;
using test::HttpServer;
using test::make_certificate;
using test::ServedReply;
using test::ServedRequest;
using test::TlsServer;

class Tls : public ::testing::Test {
 protected:
  // A file of certificates, as named by AWS_CA_BUNDLE.
  std::string bundle_of(const Certificate& certificate) {
    const std::string path = directory_ / "bundle.pem";
    std::ofstream(path) << certificate.pem;
    return path;
  }
  // The error of a request to a server with this certificate; "" if it succeeds.
  std::string refusal(const Certificate& certificate, const std::string& bundle) {
    TlsServer tls(certificate, server_.port());
    const auto transport = make_curl_transport({.ca_bundle = bundle});
    HttpRequest request;
    request.url = parse_url(tls.url() + "/x", "a test");
    request.direct = true;  // this machine's proxies must not affect the test
    const int before = served_;
    try {
      EXPECT_EQ(transport->send(request).body, "/x");
      EXPECT_EQ(served_, before + 1);
      return "";
    } catch (const TransportError& error) {
      EXPECT_FALSE(error.retriable()) << error.what();
      EXPECT_FALSE(error.may_have_arrived()) << error.what();
      EXPECT_EQ(served_, before) << "the request was sent nevertheless";
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
      return error.what();
    }
  }

  testing::TemporaryDirectory directory_;
  std::atomic<int> served_{0};
  HttpServer server_{[this](const ServedRequest& request) {
    ++served_;
    return ServedReply{.body = request.path};
  }};
};

TEST_F(Tls, RefusesUnknownIssuersWithTheRemedy) {
  const Certificate own = make_certificate();
  EXPECT_THAT(refusal(own, ""),
              AllOf(HasSubstr("GET https://localhost:"), HasSubstr("self-signed certificate"),
                    HasSubstr("name a file of certificates in AWS_CA_BUNDLE")));
  EXPECT_EQ(refusal(own, bundle_of(own)), "");
  // This bundle contains another certificate.
  const std::string bundle = bundle_of(make_certificate());
  EXPECT_THAT(refusal(own, bundle),
              HasSubstr(bundle + " (AWS_CA_BUNDLE, ca_bundle) has no certificate of its issuer"));
}

TEST_F(Tls, ForWhom) {
  const Certificate other = make_certificate({.host = "elsewhere.example"});
  EXPECT_THAT(refusal(other, bundle_of(other)),
              AllOf(HasSubstr("'localhost'"), HasSubstr("for another host: check --endpoint-url"),
                    HasSubstr("AWS_CA_BUNDLE")));
}

TEST_F(Tls, HowLong) {
  const Certificate old = make_certificate({.begins = -7200, .ends = -3600});
  EXPECT_THAT(refusal(old, bundle_of(old)),
              AllOf(HasSubstr("certificate has expired"), HasSubstr("check this machine's clock"),
                    HasSubstr("AWS_CA_BUNDLE")));
  const Certificate early = make_certificate({.begins = 3600, .ends = 7200});
  EXPECT_THAT(refusal(early, bundle_of(early)),
              AllOf(HasSubstr("not yet valid"), HasSubstr("check this machine's clock")));
}

TEST_F(Tls, BundlesThatAreNone) {
  const Certificate own = make_certificate();
  const std::string none = directory_ / "nothing.pem";
  EXPECT_THAT(refusal(own, none), HasSubstr("AWS_CA_BUNDLE (ca_bundle) names " + none));
  std::ofstream(none) << "no certificate";
  EXPECT_THAT(refusal(own, none), HasSubstr("AWS_CA_BUNDLE (ca_bundle) names " + none));
}

// The bundle is named by the environment or by the profile.
TEST_F(Tls, BySession) {
  const FakeAws aws;
  const Certificate own = make_certificate();
  const std::string bundle = bundle_of(own);
  const TlsServer tls(own, std::stoi(aws.url().substr(aws.url().rfind(':') + 1)));
  const auto list = [&](std::map<std::string, std::string, std::less<>> more) {
    more.merge(
        std::map<std::string, std::string, std::less<>>{{"AWS_ENDPOINT_URL", tls.url()},
                                                        {"AWS_ACCESS_KEY_ID", FakeAws::kKey},
                                                        {"AWS_SECRET_ACCESS_KEY", FakeAws::kSecret},
                                                        {"AWS_REGION", "us-east-1"}});
    return Session(environment_of(more), {.retry = no_waiting()}).s3().list({"bucket", ""}).size();
  };
  EXPECT_EQ(list({{"AWS_CA_BUNDLE", bundle}}), 0U);
  EXPECT_EQ(tls.handshakes(), 1);
  EXPECT_THAT(error_text([&] { list({}); }), HasSubstr("AWS_CA_BUNDLE"));
  std::ofstream(directory_ / "config") << "[default]\nca_bundle = " << bundle << "\n";
  EXPECT_EQ(list({{"AWS_CONFIG_FILE", directory_ / "config"}}), 0U);
  EXPECT_EQ(tls.handshakes(), 2);
}

}  // namespace
}  // namespace shoal::sagemaker
