#include "shoal/sagemaker/rest/service_error.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>
#include <pugixml.hpp>

#include "shoal/runtime/io/json.h"
#include "shoal/sagemaker/rest/credentials.h"
#include "shoal/sagemaker/rest/encode.h"

namespace shoal::sagemaker {
namespace {

// Codes that botocore's standard mode retries.
constexpr std::array<std::string_view, 16> kThrottling = {"Throttling",
                                                          "ThrottlingException",
                                                          "ThrottledException",
                                                          "RequestThrottled",
                                                          "RequestThrottledException",
                                                          "TooManyRequestsException",
                                                          "ProvisionedThroughputExceededException",
                                                          "TransactionInProgressException",
                                                          "RequestLimitExceeded",
                                                          "BandwidthLimitExceeded",
                                                          "LimitExceededException",
                                                          "SlowDown",
                                                          "EC2ThrottledException",
                                                          "PriorRequestNotComplete",
                                                          "RequestThrottle",
                                                          "ThrottledRequest"};
constexpr std::array<std::string_view, 4> kExpired = {"ExpiredToken", "ExpiredTokenException",
                                                      "TokenRefreshRequired", "RequestExpired"};
constexpr std::array<std::string_view, 7> kMissing = {
    "ResourceNotFound", "ResourceNotFoundException",
    "NoSuchKey",        "NoSuchBucket",
    "NoSuchUpload",     "NotFound",
    "NoSuchEntity"};
constexpr std::array<std::string_view, 7> kWrongKeys = {"UnrecognizedClientException",
                                                        "InvalidClientTokenId",
                                                        "InvalidAccessKeyId",
                                                        "SignatureDoesNotMatch",
                                                        "InvalidSignatureException",
                                                        "IncompleteSignature",
                                                        "AuthFailure"};
constexpr std::array<std::string_view, 4> kDenied = {"AccessDenied", "AccessDeniedException",
                                                     "UnauthorizedOperation", "NotAuthorized"};

template <std::size_t N>
bool among(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Extracts ValidationException from "com.amazonaws#ValidationException:http://...".
std::string bare_code(std::string_view code) {
  code = code.substr(0, code.find(':'));
  if (const auto hash = code.rfind('#'); hash != code.npos) code.remove_prefix(hash + 1);
  return std::string(trim(code));
}

struct Parsed {
  std::string code, message, request_id, region;
};

bool parse_json_error(const std::string& body, Parsed& parsed) {
  nlohmann::json object;
  try {
    object = parse_json(body, "the answer");
  } catch (const Error&) {
    return false;
  }
  if (!object.is_object()) return false;
  for (const char* key : {"__type", "code", "Code"})
    if (object.contains(key) && object[key].is_string() && parsed.code.empty())
      parsed.code = bare_code(object[key].get<std::string>());
  for (const char* key : {"message", "Message", "errorMessage"})
    if (object.contains(key) && object[key].is_string() && parsed.message.empty())
      parsed.message = object[key].get<std::string>();
  return true;
}

bool parse_xml_error(const std::string& body, Parsed& parsed) {
  pugi::xml_document document;
  if (!document.load_buffer(body.data(), body.size())) return false;
  const pugi::xml_node root = document.document_element();
  // S3: <Error>; STS: <ErrorResponse><Error>; others: <Response><Errors><Error>.
  pugi::xml_node error = root;
  if (std::string_view(root.name()) != "Error") error = root.child("Error");
  if (!error) error = root.child("Errors").child("Error");
  if (!error) return false;
  parsed.code = error.child_value("Code");
  parsed.message = error.child_value("Message");
  if (parsed.message.empty()) parsed.message = error.child_value("message");
  parsed.region = error.child_value("Region");  // in AuthorizationHeaderMalformed
  for (const pugi::xml_node& node : {error.child("RequestId"), root.child("RequestId"),
                                     root.child("RequestID"), root.child("requestId")})
    if (parsed.request_id.empty()) parsed.request_id = node.child_value();
  return true;
}

// Collapses a text to one line of at most `most` bytes.
std::string one_line(std::string_view body, std::size_t most) {
  std::string text;
  for (const char c : body.substr(0, 4096)) {
    if (static_cast<unsigned char>(c) > ' ')
      text += c;
    else if (!text.empty() && !text.ends_with(' '))
      text += ' ';
  }
  text = trim(text);
  if (text.size() <= most) return text;
  std::size_t end = most - 3;  // a character boundary
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + "...";
}

// Strips tags from a proxy's HTML page.
std::string without_tags(std::string_view body) {
  std::string text;
  bool in_tag = false;
  for (const char c : body.substr(0, 4096)) {
    if (c == '<') in_tag = true;
    text += in_tag ? ' ' : c;
    if (c == '>') in_tag = false;
  }
  return text;
}

ErrorCode kind_of(const ServiceError& error) {
  if (error.is_missing()) return ErrorCode::not_found;
  if (error.service_code() == "ValidationException") return ErrorCode::invalid_argument;
  return ErrorCode::io;
}

std::string remedy_of(const ServiceError& error, std::string_view operation, std::string_view who) {
  const std::string& code = error.service_code();
  const std::string keys =
      who.empty() ? "the credentials" : fmt::format("the credentials ({})", who);
  if (error.is_clock_skew()) return "set this machine's clock";
  if (error.is_expired_token()) return "renew " + keys;
  if (among(kWrongKeys, code)) return "check " + keys + ": access key, secret and session token";
  if (among(kDenied, code) || error.status() == 403)
    return fmt::format("give {} the permission for {}", keys, operation);
  if (code == "ResourceLimitExceeded")
    return "ask for a higher quota (Service Quotas), wait for other jobs, or take another instance "
           "type";
  if (code == "NoSuchBucket") return "create the bucket, or name another";
  if (code == "ResourceInUse") return "choose another name";
  if (error.is_throttling()) return "try again later, or ask less often";
  if (error.is_transient()) return "try again later";
  return {};
}

}  // namespace

ServiceError::ServiceError(int status, std::string code, std::string service_message,
                           std::string request_id, std::string_view operation, ErrorCode kind,
                           std::string remedy)
    : Error(kind,
            fmt::format("{}: {}{}{} (HTTP {}{}{})", operation, code,
                        code.empty() || service_message.empty() ? "" : ": ",
                        !code.empty() || !service_message.empty() ? service_message
                        : status < 300                            ? "the answer is incomplete"
                                                                  : "the request failed",
                        status, request_id.empty() ? "" : ", request ", request_id),
            std::move(remedy)),
      status_(status),
      service_code_(std::move(code)),
      service_message_(std::move(service_message)),
      request_id_(std::move(request_id)) {}

bool ServiceError::is_throttling() const {
  return among(kThrottling, service_code_) || status_ == 429;
}
bool ServiceError::is_transient() const {
  return status_ == 500 || status_ == 502 || status_ == 503 || status_ == 504 ||
         service_code_ == "RequestTimeout" || service_code_ == "RequestTimeoutException" ||
         service_code_ == "InternalError" || service_code_ == "IDPCommunicationError";
}
bool ServiceError::is_expired_token() const { return among(kExpired, service_code_); }
bool ServiceError::is_clock_skew() const {
  return service_code_ == "RequestTimeTooSkewed" || service_code_ == "RequestInTheFuture" ||
         ((service_code_ == "InvalidSignatureException" ||
           service_code_ == "SignatureDoesNotMatch") &&
          (service_message_.find("Signature expired") != std::string::npos ||
           service_message_.find("Signature not yet current") != std::string::npos));
}
bool ServiceError::is_silent() const { return service_code_.empty() && service_message_.empty(); }
bool ServiceError::is_missing() const {
  // SageMaker reports a missing training job as a ValidationException.
  return among(kMissing, service_code_) || (service_code_.empty() && status_ == 404) ||
         (service_code_ == "ValidationException" &&
          (service_message_.find("not found") != std::string::npos ||
           service_message_.find("Could not find") != std::string::npos));
}

bool may_pass(const Error& error) {
  if (const auto* broken = dynamic_cast<const TransportError*>(&error)) return broken->retriable();
  if (const auto* source = dynamic_cast<const CredentialsError*>(&error)) return source->may_pass();
  const auto* refused = dynamic_cast<const ServiceError*>(&error);
  return refused != nullptr && (refused->is_transient() || refused->is_throttling());
}

ServiceError service_error(const HttpResponse& response, std::string_view operation,
                           std::string_view who) {
  Parsed parsed;
  if (!parse_json_error(response.body, parsed) && !parse_xml_error(response.body, parsed))
    parsed.message = one_line(without_tags(response.body), 300);
  if (const std::string* type = find_header(response.headers, "x-amzn-errortype");
      type != nullptr && parsed.code.empty())
    parsed.code = bare_code(*type);
  for (const char* name : {"x-amzn-requestid", "x-amz-request-id"})
    if (const std::string* id = find_header(response.headers, name);
        id != nullptr && parsed.request_id.empty())
      parsed.request_id = *id;
  // A HEAD has no body, only a status.
  if (parsed.code.empty() && response.status == 404) parsed.code = "NotFound";
  // Services put all problems of a request into one message.
  parsed.message = one_line(parsed.message, 2000);
  const ServiceError plain(response.status, parsed.code, parsed.message, parsed.request_id,
                           operation, ErrorCode::io, {});
  ServiceError error(response.status, parsed.code, parsed.message, parsed.request_id, operation,
                     kind_of(plain), remedy_of(plain, operation, who));
  if (const std::string* region = find_header(response.headers, "x-amz-bucket-region"))
    error.bucket_region = *region;
  else
    error.bucket_region = parsed.region;
  return error;
}

}  // namespace shoal::sagemaker
