// Settings for calls to AWS: region, credentials, endpoints. Taken from options, then the
// environment, then the profile.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "shoal/sagemaker/rest/client.h"
#include "shoal/sagemaker/rest/environment.h"
#include "shoal/sagemaker/rest/profile.h"
#include "shoal/sagemaker/rest/s3.h"

namespace shoal::sagemaker {

struct SessionOptions {
  std::optional<std::string> profile = {}, region = {};
  std::optional<std::string> endpoint_url = {};  // for every service; may be http
  RetryOptions retry = {};
};

// AWS_REGION, AWS_DEFAULT_REGION, or the profile's region; nullopt if none is set.
std::optional<std::string> configured_region(const Environment& environment,
                                             const std::optional<std::string>& profile);

class Session {
 public:
  // Throws invalid_argument without a region. Does not use the network or credentials before the
  // first call. `transport`: null creates one with libcurl.
  //
  // Reads AWS_REGION, AWS_DEFAULT_REGION; AWS_ENDPOINT_URL[_SAGEMAKER|_CLOUDWATCH_LOGS|_S3|_STS],
  // unless AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is set; AWS_USE_FIPS_ENDPOINT,
  // AWS_USE_DUALSTACK_ENDPOINT; AWS_MAX_ATTEMPTS; AWS_CA_BUNDLE; and the profile's equivalents.
  explicit Session(Environment environment, SessionOptions options = {},
                   std::shared_ptr<Transport> transport = nullptr);

  const std::string& region() const { return region_; }
  EndpointOptions endpoint_options(Service service) const;
  ServiceClient client(Service service) const;
  S3 s3() const;

 private:
  std::optional<std::string> setting(std::string_view variable, std::string_view key) const;
  bool is_on(std::string_view variable, std::string_view key) const;

  Environment environment_;
  SessionOptions options_;
  SharedConfig shared_;
  std::string profile_, region_;
  Wire wire_;
};

}  // namespace shoal::sagemaker
