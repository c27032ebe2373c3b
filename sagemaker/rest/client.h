// Client of a service: signs, sends and retries as AWS's SDKs do ("standard" retry mode).
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
  int attempts = 3;           // including the first
  double longest_delay = 20;  // seconds; delays are random() * min(2^i, longest_delay)
  std::function<void(double seconds)> sleep = {};  // null: the thread sleeps
  std::function<double()> random = {};             // [0, 1); null: std::random_device
  // Delay before attempt `next` (2 for the second): the random delay, or that of a Retry-After
  // header if longer (at most longest_delay).
  double delay(int next, const HttpResponse* response) const;
  void wait(int next, const HttpResponse* response) const;
};

// Shared by all clients of a program.
struct Wire {
  std::shared_ptr<Transport> transport;
  std::shared_ptr<CredentialProvider> credentials;  // null: requests are not signed
  RetryOptions retry = {};
  std::function<Moment()> now = std::chrono::system_clock::now;
  // Seconds that AWS's clock is ahead of ours; set once a service has refused a signature.
  std::shared_ptr<std::atomic<double>> skew = std::make_shared<std::atomic<double>>(0.0);
};

struct Call {
  std::string operation;  // "CreateTrainingJob"
  // False: must not be executed twice. Retries only failures that surely did nothing (refused
  // connections, throttling). Other failures are thrown at once; may_have_been_done() tells whether
  // the call may have succeeded.
  bool repeatable = true;
  int attempts = 0;  // 0: the wire's default
  // S3 may answer 200 with an error in the body: returns true for such a response.
  std::function<bool(const HttpResponse& response)> is_error = {};
};

// Thread-safe.
class ServiceClient {
 public:
  ServiceClient(Wire wire, Endpoint endpoint);

  // request.url must be complete (based on endpoint().url). Returns a 2xx response, or throws
  // ServiceError or TransportError. Within a call, renews expired credentials at most once, and
  // corrects a clock that the service rejected at most once.
  HttpResponse send(HttpRequest request, const Call& call) const;
  // Calls an operation of a JSON service: X-Amz-Target "TARGET.OPERATION", JSON in and out.
  nlohmann::json call_json(std::string_view target, std::string_view operation,
                           const nlohmann::json& arguments, bool repeatable = true) const;

  const Endpoint& endpoint() const { return endpoint_; }
  const Wire& wire() const { return wire_; }
  Moment now() const;  // by the service's clock, if known

 private:
  std::string name(std::string_view operation) const;  // "SageMaker CreateTrainingJob"
  Wire wire_;
  Endpoint endpoint_;
};

// The text of a field; "" if it is absent or not a string.
std::string text_at(const nlohmann::json& object, const char* key);

// True if an operation that failed with `error` may have been executed.
bool may_have_been_done(const Error& error);

}  // namespace shoal::sagemaker
