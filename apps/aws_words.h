// Options of subcommands that call AWS; here also where the build has no client of it.
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
// --region, AWS_REGION, AWS_DEFAULT_REGION, or the profile's (which a build without a client of AWS
// does not read); empty where none says one. No network.
std::string region_of(const AwsWords& words);

struct SubmitWords {
  std::string path;  // of the job file
  AwsWords aws;
  bool dry_run = false;  // print the request only
  bool wait = false, logs = false, json = false;
  double interval_seconds = 10;
};
// Uploads the code, creates the job, follows it if asked to; the exit status.
int submit_job(const SubmitWords& words);

}  // namespace shoal::app
