#include "shoal/sagemaker/rest/session.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/sagemaker/rest/encode.h"

namespace shoal::sagemaker {
namespace {

// Names in variables and in the profile's `services`.
std::string_view setting_name(Service service) {
  switch (service) {
    case Service::sagemaker:
      return "sagemaker";
    case Service::logs:
      return "cloudwatch_logs";
    case Service::s3:
      return "s3";
    case Service::sts:
      return "sts";
  }
  return "";
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return result;
}

}  // namespace

std::optional<std::string> configured_region(const Environment& environment,
                                             const std::optional<std::string>& profile) {
  for (const char* variable : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (auto value = environment(variable)) return value;
  return SharedConfig::load(environment).get(profile_name(profile, environment), "region");
}

Session::Session(Environment environment, SessionOptions options,
                 std::shared_ptr<Transport> transport)
    : environment_(std::move(environment)),
      options_(std::move(options)),
      shared_(SharedConfig::load(environment_)),
      profile_(profile_name(options_.profile, environment_)) {
  region_ = options_.region ? *options_.region
                            : configured_region(environment_, options_.profile).value_or("");
  if (region_.empty())
    throw Error(ErrorCode::invalid_argument, "no AWS region is given",
                "give --region, AWS_REGION, or a region in the profile of ~/.aws/config");
  partition_of(region_);
  if (!transport)
    transport =
        make_curl_transport({.ca_bundle = setting("AWS_CA_BUNDLE", "ca_bundle").value_or("")});
  wire_ = {.transport = std::move(transport), .credentials = nullptr, .retry = options_.retry};
  if (const auto attempts = setting("AWS_MAX_ATTEMPTS", "max_attempts")) {
    const auto count = parse_number<int>(*attempts);
    SHOAL_CHECK(count && *count >= 1 && *count <= 100,
                "AWS_MAX_ATTEMPTS (max_attempts) is '{}'; it must be 1 to 100", *attempts);
    wire_.retry.attempts = *count;
  }
  ChainOptions chain{.profile = options_.profile, .region = region_, .sleep = options_.retry.sleep};
  chain.sts_endpoint_url = endpoint_options(Service::sts).url;
  wire_.credentials = make_credential_chain(environment_, wire_.transport, std::move(chain));
}

std::optional<std::string> Session::setting(std::string_view variable, std::string_view key) const {
  if (auto value = environment_(variable)) return value;
  return shared_.get(profile_, key);
}

bool Session::is_on(std::string_view variable, std::string_view key) const {
  const auto value = setting(variable, key);
  return value && lower(*value) == "true";
}

EndpointOptions Session::endpoint_options(Service service) const {
  EndpointOptions result{
      .region = region_,
      .fips = is_on("AWS_USE_FIPS_ENDPOINT", "use_fips_endpoint"),
      .dual_stack = is_on("AWS_USE_DUALSTACK_ENDPOINT", "use_dualstack_endpoint"),
      .url = options_.endpoint_url};
  if (result.url || is_on("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "ignore_configured_endpoint_urls"))
    return result;
  const std::string_view name = setting_name(service);
  result.url = environment_("AWS_ENDPOINT_URL_" + upper(name));
  if (!result.url) result.url = environment_("AWS_ENDPOINT_URL");
  if (!result.url) result.url = shared_.service_endpoint(profile_, name);
  if (!result.url) result.url = shared_.get(profile_, "endpoint_url");
  return result;
}

ServiceClient Session::client(Service service) const {
  return {wire_, resolve_endpoint(service, endpoint_options(service))};
}

S3 Session::s3() const { return {wire_, endpoint_options(Service::s3)}; }

}  // namespace shoal::sagemaker
