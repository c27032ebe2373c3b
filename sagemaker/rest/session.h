// Where and as whom this program calls AWS: region, credentials, endpoints, from options, the
// environment and the profile, in this order.
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
  std::optional<std::string> endpoint_url = {};  // of every service; may be http
  RetryOptions retry = {};
};

// AWS_REGION, AWS_DEFAULT_REGION, or the profile's; nothing where none says one.
std::optional<std::string> configured_region(const Environment& environment,
                                             const std::optional<std::string>& profile);

class Session {
 public:
  // invalid_argument without a region. No network, no credentials before the first call.
  // AWS_REGION, AWS_DEFAULT_REGION; AWS_ENDPOINT_URL[_SAGEMAKER|_CLOUDWATCH_LOGS|_S3|_STS], unless
  // AWS_IGNORE_CONFIGURED_ENDPOINT_URLS; AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT;
  // AWS_MAX_ATTEMPTS; AWS_CA_BUNDLE; and what the profile says of the same.
  // `transport`: null makes one of libcurl.
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
