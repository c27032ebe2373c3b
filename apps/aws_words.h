// Options of subcommands that call AWS. Also available in builds without an AWS client.
#pragma once

#include <optional>
#include <string>

#include "commands.h"

namespace shoal::app {

// --region, --profile, --endpoint-url.
struct AwsWords {
  std::optional<std::string> region = {}, profile = {}, endpoint_url = {};
};
void add_aws_words(CLI::App& command, AwsWords& words);
// --region, AWS_REGION, AWS_DEFAULT_REGION, or the profile's region (not read in builds without an
// AWS client). Empty if none is set. Does not use the network.
std::string region_of(const AwsWords& words);

struct SubmitWords {
  std::string path;    // path of the job file
  std::string upload;  // directory of local data; empty: none
  AwsWords aws;
  bool dry_run = false;  // only check and print
  bool wait = false, logs = false, json = false;
  double interval_seconds = 10;
};
// Uploads the code, creates the job, and follows it if requested. Returns the exit status.
int submit_job(const SubmitWords& words);

}  // namespace shoal::app
