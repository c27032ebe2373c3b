// A service's client: signs, sends, and tries again as AWS's SDKs do ("standard" retry mode).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "shoal/sagemaker/rest/credentials.h"
#include "shoal/sagemaker/rest/endpoint.h"
#include "shoal/sagemaker/rest/http.h"
#include "shoal/sagemaker/rest/service_error.h"

namespace shoal::sagemaker {

struct RetryOptions {
  int attempts = 3;           // in all
  double longest_delay = 20;  // seconds; delays are random() * min(2^i, longest_delay)
  std::function<void(double seconds)> sleep = {};  // null: the thread sleeps
  std::function<double()> random = {};             // [0, 1); null: of the machine
  // Before attempt `next` (2 for the second): as above, or what a Retry-After header asks for where
  // that is longer (at most longest_delay).
  double delay(int next, const HttpResponse* response) const;
  void wait(int next, const HttpResponse* response) const;
};

// What all clients of a program share.
struct Wire {
  std::shared_ptr<Transport> transport;
  std::shared_ptr<CredentialProvider> credentials;  // null: nothing is signed
  RetryOptions retry = {};
  std::function<Moment()> now = std::chrono::system_clock::now;
  // Seconds that AWS's clock is ahead of ours, once a service has refused one of our signatures.
  std::shared_ptr<std::atomic<double>> skew = std::make_shared<std::atomic<double>>(0.0);
};

struct Call {
  std::string operation;  // "CreateTrainingJob"
  // False: it must not be done twice. Then only what surely was not done is tried again (refused
  // connections, throttling); any other failure is thrown at once, may_have_been_done() of it true.
  bool repeatable = true;
  int attempts = 0;  // 0: the wire's
  // S3 may answer 200 with an error in the body: true where this one is such.
  std::function<bool(const HttpResponse& response)> is_error = {};
};

// Thread-safe.
class ServiceClient {
 public:
  ServiceClient(Wire wire, Endpoint endpoint);

  // request.url is complete (url() gives the endpoint's). A 2xx response, or ServiceError,
  // TransportError. Credentials that expired are renewed, and a clock that the service disagrees
  // with is corrected, once each a call.
  HttpResponse send(HttpRequest request, const Call& call) const;
  // An operation of the JSON services: X-Amz-Target "TARGET.OPERATION", JSON in and out.
  nlohmann::json call_json(std::string_view target, std::string_view operation,
                           const nlohmann::json& arguments, bool repeatable = true) const;

  const Endpoint& endpoint() const { return endpoint_; }
  const Wire& wire() const { return wire_; }
  Moment now() const;  // by the service's clock, as far as it is known

 private:
  std::string name(std::string_view operation) const;  // "SageMaker CreateTrainingJob"
  Wire wire_;
  Endpoint endpoint_;
};

// The text of a field; "" where it is none, or absent.
std::string text_at(const nlohmann::json& object, const char* key);

// Whether an operation that failed so may have been carried out all the same.
bool may_have_been_done(const Error& error);

}  // namespace shoal::sagemaker
