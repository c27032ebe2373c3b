// AWS Signature Version 4 (docs.aws.amazon.com, "AWS Signature Version 4 for API requests"), by
// OpenSSL. libcurl's own (CURLOPT_AWS_SIGV4) signs wrongly, in 7.88, queries that are not sorted or
// lack a value, '+' in names, and bodies without a hash header.
#pragma once

#include <string>
#include <string_view>

#include "shoal/sagemaker/rest/credentials.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

struct Signing {
  std::string region, service;  // as in the scope: "us-east-1", "sagemaker"
  Moment time;                  // now, corrected by what the service said of its clock
  // S3 signs the path as sent and wants the body's hash as a header; every other service signs the
  // path without empty, "." and ".." parts, encoded once more.
  bool s3 = false;
  // Hexadecimal SHA-256 of the body, or kUnsignedPayload; empty: computed from the request's body.
  std::string payload_hash = {};
};

// Sets X-Amz-Date, X-Amz-Security-Token where there is a token, X-Amz-Content-Sha256 for S3, and
// Authorization over all headers of the request, but those that proxies change (User-Agent ...).
// Signing a request again replaces what was there.
void sign(HttpRequest& request, const Credentials& credentials, const Signing& signing);

// The URL that carries the signature in its query, good for `seconds` (1 to 604800) from
// signing.time. Signs the request's headers too: who uses the URL must send them. For S3 with
// kUnsignedPayload, unless payload_hash says otherwise.
Url presign(const HttpRequest& request, const Credentials& credentials, const Signing& signing,
            int seconds);

// The steps, for whoever looks for what a service refused.
std::string canonical_request(const HttpRequest& request, const Signing& signing,
                              std::string_view payload_hash);
std::string string_to_sign(const Signing& signing, std::string_view canonical);

}  // namespace shoal::sagemaker
