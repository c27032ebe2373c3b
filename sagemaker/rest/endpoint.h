// Which host serves what, where: AWS's partitions and the endpoint rules of the services used here
// (botocore's endpoint-rule-set files of sagemaker, logs, sts and s3).
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
// By the form of the region's name, as the SDKs do; a new region of a known form needs no release.
// invalid_argument where it is no name of a region.
Partition partition_of(std::string_view region);

struct EndpointOptions {
  std::string region;
  bool fips = false, dual_stack = false;
  std::optional<std::string> url = {};  // instead of AWS's own: --endpoint-url
};

struct Endpoint {
  Url url;  // its path is a prefix of what is asked
  std::string region;
  Service service;
  bool given = false;  // by url: it may be http, and S3's buckets stand in the path
};
Endpoint resolve_endpoint(Service service, const EndpointOptions& options);

// s3://BUCKET/KEY. invalid_argument unless the bucket has 3 to 63 of a-z 0-9 . - and the key,
// which may be empty, at most 1024 bytes.
struct S3Name {
  std::string bucket, key;
  std::string text() const { return "s3://" + bucket + "/" + key; }
};
S3Name parse_s3_name(std::string_view uri);

// The bucket in the host's name (virtual-hosted style); in the path where the endpoint was given or
// the name has a dot, which no certificate would cover. The key percent-encoded but for '/'.
Url object_url(const Endpoint& endpoint, const S3Name& name);

}  // namespace shoal::sagemaker
