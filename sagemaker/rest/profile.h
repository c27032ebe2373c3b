// The shared files of the AWS command line, ~/.aws/config and ~/.aws/credentials, as described by
// botocore and the SDKs reference guide ("Shared config and credentials files").
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/sagemaker/rest/environment.h"

namespace shoal::sagemaker {

// Settings of a section; nested ones ("s3 =" with indented lines) become "s3.endpoint_url".
using Section = std::map<std::string, std::string, std::less<>>;

// Sections by header text: "default", "profile dev", "services local". Throws corrupt_data, with
// `name` and the line, on a line that is no header, KEY = VALUE, indented line or comment.
std::map<std::string, Section, std::less<>> parse_sections(std::string_view text,
                                                           std::string_view name);

class SharedConfig {
 public:
  // Reads AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, by default in HOME. Missing files count
  // as empty.
  static SharedConfig load(const Environment& environment);

  bool has_profile(std::string_view profile) const;
  // A setting of a profile. The credentials file has priority over the config file.
  std::optional<std::string> get(std::string_view profile, std::string_view key) const;
  // Like get(), but reads only the file that provides `beside`: a token in one file does not belong
  // to a key in the other.
  std::optional<std::string> get_beside(std::string_view profile, std::string_view beside,
                                        std::string_view key) const;
  // endpoint_url of a service ("s3", "cloudwatch_logs") in the profile's `services` section.
  std::optional<std::string> service_endpoint(std::string_view profile,
                                              std::string_view service) const;

 private:
  const Section* config_section(std::string_view profile) const;
  std::map<std::string, Section, std::less<>> config_, credentials_;
};

// --profile, then AWS_PROFILE, AWS_DEFAULT_PROFILE, "default".
std::string profile_name(const std::optional<std::string>& given, const Environment& environment);

}  // namespace shoal::sagemaker
