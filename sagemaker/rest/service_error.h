// What a service answered instead of doing what was asked.
#pragma once

#include <string>
#include <string_view>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {

// One line: "SageMaker CreateTrainingJob: ResourceInUse: Training job names must be unique ...
// (HTTP 400, request 8f2c...); what to do".
class ServiceError : public Error {
 public:
  ServiceError(int status, std::string code, std::string service_message, std::string request_id,
               std::string_view operation, ErrorCode kind, std::string remedy);

  int status() const { return status_; }
  const std::string& service_code() const { return service_code_; }  // "" where it named none
  const std::string& service_message() const { return service_message_; }
  const std::string& request_id() const { return request_id_; }

  bool is_throttling() const;
  bool is_transient() const;      // 500, 502, 503, 504, RequestTimeout
  bool is_expired_token() const;  // other credentials may do
  bool is_clock_skew() const;     // the time of the signature was refused
  bool is_silent() const;         // neither code nor message: what a HEAD is refused with
  bool is_missing() const;        // what was named does not exist

  std::string bucket_region;  // of S3: where the bucket is, if it said so

 private:
  int status_;
  std::string service_code_, service_message_, request_id_;
};

// An outage of who answered (or gave up) so, which another try, later, may find over: throttling,
// HTTP 5xx, broken connections, a source of credentials that is down.
bool may_pass(const Error& error);

// From a JSON, an XML or any other body (a proxy's HTML: its first words). `operation`: "SageMaker
// CreateTrainingJob"; `who`: where the credentials came from, for the remedy; may be empty.
ServiceError service_error(const HttpResponse& response, std::string_view operation,
                           std::string_view who);

}  // namespace shoal::sagemaker
