// Helpers of the tests in sagemaker/rest: a transport with scripted answers, and
// clients that do not sleep.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "sagemaker/rest/fake_aws.h"
#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/sagemaker/rest/session.h"

namespace shoal::sagemaker {

using test::error_text;
using test::FakeAws;
using test::Fault;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A copy of a sent request.
struct SentRequest {
  HttpRequest request;
  std::string body;
  std::string header(const std::string& name) const {
    const std::string* value = find_header(request.headers, name);
    return value != nullptr ? *value : "";
  }
};

// Gives its answers in order, and repeats the last one.
class ScriptedTransport final : public Transport {
 public:
  using Step = std::variant<HttpResponse, TransportError>;
  explicit ScriptedTransport(std::vector<Step> steps) : steps_(std::move(steps)) {}
  HttpResponse send(const HttpRequest& request) override {
    sent.push_back({request, std::string(request.body)});
    const Step& step = steps_[std::min(sent.size(), steps_.size()) - 1];
    if (const auto* error = std::get_if<TransportError>(&step)) throw TransportError(*error);
    return std::get<HttpResponse>(step);
  }
  std::vector<SentRequest> sent;

 private:
  std::vector<Step> steps_;
};

// Computes each answer from its request.
class FunctionTransport final : public Transport {
 public:
  explicit FunctionTransport(std::function<HttpResponse(const HttpRequest&)> answer)
      : answer_(std::move(answer)) {}
  HttpResponse send(const HttpRequest& request) override { return answer_(request); }

 private:
  std::function<HttpResponse(const HttpRequest&)> answer_;
};

inline RetryOptions no_waiting(std::vector<double>* waits = nullptr) {
  RetryOptions retry;
  retry.random = [] { return 1.0; };
  retry.sleep = [waits](double seconds) {
    if (waits != nullptr) waits->push_back(seconds);
  };
  return retry;
}

inline std::shared_ptr<CredentialProvider> example_keys() {
  return std::make_shared<CredentialProvider>(Credentials{
      .access_key = FakeAws::kKey, .secret_key = Secret(FakeAws::kSecret), .source = "a test"});
}

// A session whose calls go to a fake AWS through libcurl.
inline Session session_at(const FakeAws& aws, std::vector<double>* waits = nullptr) {
  return Session(environment_of({{"AWS_ENDPOINT_URL", aws.url()},
                                 {"AWS_ACCESS_KEY_ID", FakeAws::kKey},
                                 {"AWS_SECRET_ACCESS_KEY", FakeAws::kSecret},
                                 {"AWS_REGION", "us-east-1"},
                                 {"AWS_EC2_METADATA_DISABLED", "true"}}),
                 {.retry = no_waiting(waits)});
}

}  // namespace shoal::sagemaker
