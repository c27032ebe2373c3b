// Hosts of services: AWS's partitions and the endpoint rules of the services used here (botocore's
// endpoint-rule-set files of sagemaker, logs, sts and s3).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {

enum class Service { sagemaker, logs, s3, sts };
std::string_view signing_name(Service service);  // "sagemaker", "logs", "s3", "sts"

struct Partition {
  std::string_view name, suffix, dual_stack_suffix;  // "aws", "amazonaws.com", "api.aws"
};
// Determined by the form of the region's name, as in the SDKs, so new regions need no release.
// Throws invalid_argument if it is not a region's name.
Partition partition_of(std::string_view region);

struct EndpointOptions {
  std::string region;
  bool fips = false, dual_stack = false;
  std::optional<std::string> url = {};  // replaces AWS's host: --endpoint-url
};

struct Endpoint {
  Url url;  // its path is a prefix of request paths
  std::string region;
  Service service;
  // True if EndpointOptions::url was set: may be http, and S3 buckets are in the path.
  bool given = false;
};
Endpoint resolve_endpoint(Service service, const EndpointOptions& options);

// Parses s3://BUCKET/KEY. Throws invalid_argument unless the bucket has 3 to 63 of a-z 0-9 . - and
// the key, which may be empty, at most 1024 bytes.
struct S3Name {
  std::string bucket, key;
  std::string text() const { return "s3://" + bucket + "/" + key; }
};
S3Name parse_s3_name(std::string_view uri);

// Puts the bucket into the host name (virtual-hosted style). Puts it into the path if the endpoint
// was given, or the name has a dot, which certificates do not cover. The key is percent-encoded
// except '/'.
Url object_url(const Endpoint& endpoint, const S3Name& name);

}  // namespace shoal::sagemaker
