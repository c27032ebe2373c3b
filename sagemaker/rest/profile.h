// The AWS command line's shared files: ~/.aws/config and ~/.aws/credentials, as botocore and the
// SDKs reference guide ("Shared config and credentials files") describe them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/sagemaker/rest/environment.h"

namespace shoal::sagemaker {

// Settings of one section; a nested one ("s3 =" and indented lines below) is "s3.endpoint_url".
using Section = std::map<std::string, std::string, std::less<>>;

// Sections by their header's text: "default", "profile dev", "services local". corrupt_data with
// `name` and the line where it is none of: a header, KEY = VALUE, an indented line, a comment.
std::map<std::string, Section, std::less<>> parse_sections(std::string_view text,
                                                           std::string_view name);

class SharedConfig {
 public:
  // AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, else in HOME. Files that are not there are empty.
  static SharedConfig load(const Environment& environment);

  bool has_profile(std::string_view profile) const;
  // A setting of a profile; what both files say, the credentials file decides.
  std::optional<std::string> get(std::string_view profile, std::string_view key) const;
  // The same, of the file alone that decides `beside`: a token of one file is not of the other's
  // key.
  std::optional<std::string> get_beside(std::string_view profile, std::string_view beside,
                                        std::string_view key) const;
  // endpoint_url that the profile's `services` section gives a service ("s3", "cloudwatch_logs").
  std::optional<std::string> service_endpoint(std::string_view profile,
                                              std::string_view service) const;

 private:
  const Section* config_section(std::string_view profile) const;
  std::map<std::string, Section, std::less<>> config_, credentials_;
};

// --profile, else AWS_PROFILE, AWS_DEFAULT_PROFILE, else "default".
std::string profile_name(const std::optional<std::string>& given, const Environment& environment);

}  // namespace shoal::sagemaker
