// A service's error response.
#pragma once

#include <string>
#include <string_view>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {

// The message is one line: "SageMaker CreateTrainingJob: ResourceInUse: Training job names must be
// unique ... (HTTP 400, request 8f2c...); what to do".
class ServiceError : public Error {
 public:
  ServiceError(int status, std::string code, std::string service_message, std::string request_id,
               std::string_view operation, ErrorCode kind, std::string remedy);

  int status() const { return status_; }
  const std::string& service_code() const { return service_code_; }  // "" if the service named none
  const std::string& service_message() const { return service_message_; }
  const std::string& request_id() const { return request_id_; }

  bool is_throttling() const;
  bool is_transient() const;      // 500, 502, 503, 504, RequestTimeout, InternalError ...
  bool is_expired_token() const;  // other credentials may work
  bool is_clock_skew() const;     // the signature's time was refused
  bool is_silent() const;         // no code and no message, as for a HEAD
  bool is_missing() const;        // the named resource does not exist

  std::string bucket_region;  // S3: the bucket's region, if S3 named it

 private:
  int status_;
  std::string service_code_, service_message_, request_id_;
};

// True for temporary failures, so that a later attempt may succeed: throttling, HTTP 5xx, broken
// connections, a credential source that is down.
bool may_pass(const Error& error);

// Parses a JSON or XML body. Of another body, such as a proxy's HTML page, takes the first words.
// `operation`: "SageMaker CreateTrainingJob"; `who`: source of the credentials, for the remedy; may
// be empty.
ServiceError service_error(const HttpResponse& response, std::string_view operation,
                           std::string_view who);

}  // namespace shoal::sagemaker
