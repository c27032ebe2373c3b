// AWS Signature Version 4 (docs.aws.amazon.com, "AWS Signature Version 4 for API requests") with
// OpenSSL. libcurl's implementation (CURLOPT_AWS_SIGV4), in 7.88, is wrong for unsorted queries,
// queries without a value, '+' in names, and bodies without a hash header.
#pragma once

#include <string>
#include <string_view>

#include "shoal/sagemaker/rest/credentials.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {

struct Signing {
  std::string region, service;  // as in the scope: "us-east-1", "sagemaker"
  Moment time;                  // now, corrected by the service's clock
  // S3 signs the path as sent and needs the body's hash as a header. Other services sign the path
  // without empty, "." and ".." parts, encoded once more.
  bool s3 = false;
};

// Sets X-Amz-Date, X-Amz-Security-Token if there is a token, X-Amz-Content-Sha256 for S3, and
// Authorization over all headers except those that proxies change (User-Agent ...). Replaces an
// earlier signature.
void sign(HttpRequest& request, const Credentials& credentials, const Signing& signing);

// Intermediate steps, for debugging refused signatures.
std::string canonical_request(const HttpRequest& request, const Signing& signing,
                              std::string_view payload_hash);
std::string string_to_sign(const Signing& signing, std::string_view canonical);

}  // namespace shoal::sagemaker
