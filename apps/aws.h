// Code shared by the subcommands that call AWS.
#pragma once

#include <string>
#include <vector>

#include "aws_words.h"

#include "shoal/runtime/base/deadlines.h"
#include "shoal/sagemaker/job/job.h"
#include "shoal/sagemaker/rest/logs.h"
#include "shoal/sagemaker/rest/session.h"

namespace shoal::app {

sagemaker::Session session_of(const AwsWords& words);

// The name in a job's name or ARN, "arn:aws:sagemaker:REGION:ACCOUNT:training-job/NAME".
std::string job_name_in(const std::string& text);

// Columns are as wide as their longest cell, separated by two blanks; the last is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows);

// Uploads the job's code from `directory` and creates the job. Returns its ARN. Says what it
// uploads unless `quiet`.
std::string create_job(const sagemaker::TrainingJob& job, const std::string& directory,
                       const sagemaker::Session& session, bool quiet);

// Prints log events, one per line: "algo-1 | text", or with `json` {"event": "log", ...}.
void print_log(const std::vector<sagemaker::LogEvent>& events, bool json);

// Follows a job until it has ended. Prints status changes and, if wanted, log lines; with `json`,
// one object per line {"event": "status" | "log" | "end", ...}. Tolerates AWS outages of up to
// `patience_seconds`. Returns 0 for Completed, otherwise 1.
struct WatchOptions {
  bool status = true, logs = true, json = false;
  double interval_seconds = 10;  // between requests
  double patience_seconds = deadlines::kAwsBack;
};
int watch_job(const sagemaker::Session& session, const std::string& name,
              const WatchOptions& options);

}  // namespace shoal::app
