#include "aws_words.h"

#include "command_line.h"
#include <CLI/CLI.hpp>

namespace shoal::app {

void add_aws_words(CLI::App& command, AwsWords& words) {
  command.add_option("--region", words.region, "of AWS; else AWS_REGION, or the profile's");
  command.add_option("--profile", words.profile,
                     "of ~/.aws/config; else AWS_PROFILE, or the keys in the environment");
  command.add_option("--endpoint-url", words.endpoint_url,
                     "instead of AWS's own endpoints, for every service; may be http://");
  rarely(command, {"--region", "--profile", "--endpoint-url"});
}

}  // namespace shoal::app
