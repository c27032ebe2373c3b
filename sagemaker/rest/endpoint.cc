#include "shoal/sagemaker/rest/endpoint.h"

#include <algorithm>
#include <array>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/sagemaker/rest/encode.h"

namespace shoal::sagemaker {
namespace {

struct KnownPartition {
  std::string_view prefix;  // prefix of the partition's region names
  Partition partition;
};
// The first match counts. Regions of "aws" have many prefixes, so it comes last.
constexpr std::array kPartitions = {
    KnownPartition{"cn-", {"aws-cn", "amazonaws.com.cn", "api.amazonwebservices.com.cn"}},
    KnownPartition{"us-gov-", {"aws-us-gov", "amazonaws.com", "api.aws"}},
    KnownPartition{"us-iso-", {"aws-iso", "c2s.ic.gov", "api.aws.ic.gov"}},
    KnownPartition{"us-isob-", {"aws-iso-b", "sc2s.sgov.gov", "api.aws.scloud"}},
    KnownPartition{"eu-isoe-", {"aws-iso-e", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"}},
    KnownPartition{"us-isof-", {"aws-iso-f", "csp.hci.ic.gov", "api.aws.hci.ic.gov"}},
    KnownPartition{"eusc-", {"aws-eusc", "amazonaws.eu", "api.amazonwebservices.eu"}},
    KnownPartition{"", {"aws", "amazonaws.com", "api.aws"}},
};

// True if the text can be part of a host name: letters, digits and '-', ending with a digit.
bool is_region(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  return text.size() >= 6 && text.size() <= 32 && std::all_of(text.begin(), text.end(), letter) &&
         text.front() >= 'a' && text.back() >= '0' && text.back() <= '9' &&
         std::count(text.begin(), text.end(), '-') >= 2;
}

std::string host_of(Service service, const EndpointOptions& options, const Partition& partition) {
  const std::string& region = options.region;
  const bool gov = partition.name == "aws-us-gov";
  const std::string_view suffix =
      options.dual_stack ? partition.dual_stack_suffix : partition.suffix;
  const auto plain = [&](std::string_view name) {
    return fmt::format("{}.{}.{}", name, region, suffix);
  };
  switch (service) {
    case Service::sagemaker:
      if (!options.fips) return plain("api.sagemaker");
      if (!options.dual_stack && (partition.name == "aws" || gov))
        return fmt::format("api-fips.sagemaker.{}.amazonaws.com", region);
      return plain("api.sagemaker-fips");
    case Service::logs:
      return plain(options.fips && !(gov && !options.dual_stack) ? "logs-fips" : "logs");
    case Service::sts:
      return plain(options.fips && !(gov && !options.dual_stack) ? "sts-fips" : "sts");
    case Service::s3:
      // S3's dual-stack hosts keep the plain suffix.
      return fmt::format("s3{}{}.{}.{}", options.fips ? "-fips" : "",
                         options.dual_stack ? ".dualstack" : "", region, partition.suffix);
  }
  return {};
}

}  // namespace

std::string_view signing_name(Service service) {
  switch (service) {
    case Service::sagemaker:
      return "sagemaker";
    case Service::logs:
      return "logs";
    case Service::s3:
      return "s3";
    case Service::sts:
      return "sts";
  }
  return "";
}

Partition partition_of(std::string_view region) {
  if (!is_region(region))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' is no name of an AWS region", shortened(region)),
                "such names look like us-east-1; give one with --region or AWS_REGION");
  return std::find_if(kPartitions.begin(), kPartitions.end(),
                      [&](const KnownPartition& known) { return region.starts_with(known.prefix); })
      ->partition;
}

Endpoint resolve_endpoint(Service service, const EndpointOptions& options) {
  const Partition partition = partition_of(options.region);
  Endpoint endpoint{.url = {}, .region = options.region, .service = service};
  if (!options.url) {
    endpoint.url.host = host_of(service, options, partition);
    return endpoint;
  }
  SHOAL_CHECK(!options.fips && !options.dual_stack,
              "an endpoint of one's own ({}) and FIPS or dual-stack endpoints exclude each other",
              *options.url);
  endpoint.url = parse_url(*options.url, "the endpoint");
  endpoint.given = true;
  SHOAL_CHECK(endpoint.url.query.empty(), "the endpoint {} has a query", *options.url);
  return endpoint;
}

S3Name parse_s3_name(std::string_view uri) {
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("'{}' {}", shortened(uri), why),
                "write it as s3://BUCKET/KEY");
  };
  if (!uri.starts_with("s3://")) refuse("is no name in S3");
  const std::string_view rest = uri.substr(5);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  S3Name name{std::string(rest.substr(0, slash)),
              std::string(rest.substr(std::min(slash + 1, rest.size())))};
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  };
  const std::string& bucket = name.bucket;
  if (bucket.size() < 3 || bucket.size() > 63 ||
      !std::all_of(bucket.begin(), bucket.end(), letter) || bucket.front() == '.' ||
      bucket.front() == '-' || bucket.back() == '.' || bucket.back() == '-' ||
      bucket.find("..") != bucket.npos)
    refuse("names no bucket: 3 to 63 of a-z, 0-9, '.' and '-', a letter or digit at both ends");
  if (name.key.size() > 1024) refuse("has a key of more than 1024 bytes");
  return name;
}

Url object_url(const Endpoint& endpoint, const S3Name& name) {
  Url url = endpoint.url;
  if (!url.path.ends_with('/')) url.path += '/';
  if (endpoint.given || name.bucket.find('.') != std::string::npos)
    url.path += name.key.empty() ? name.bucket : name.bucket + "/";
  else
    url.host = name.bucket + "." + url.host;
  url.path += percent_encode(name.key, true);
  return url;
}

}  // namespace shoal::sagemaker
