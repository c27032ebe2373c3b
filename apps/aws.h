// What the subcommands that call AWS share.
#pragma once

#include <string>
#include <vector>

#include "aws_words.h"

#include "shoal/sagemaker/rest/logs.h"
#include "shoal/sagemaker/rest/session.h"

namespace shoal::app {

sagemaker::Session session_of(const AwsWords& words);

// Columns as wide as their longest cell, two blanks between them; the last is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows);

// What a job wrote, a line an event: "algo-1 | text", or with `json` {"event": "log", ...}.
void print_log(const std::vector<sagemaker::LogEvent>& events, bool json);

// Follows a job until it has ended: its changes of status and, if wanted, what it writes, as lines
// or, with `json`, as an object a line {"event": "status" | "log" | "end", ...}. An outage of AWS
// is waited out for `patience_seconds`. 0 for Completed, else 1.
struct WatchOptions {
  bool status = true, logs = true, json = false;
  double interval_seconds = 10;  // between questions
  double patience_seconds = 600;
};
int watch_job(const sagemaker::Session& session, const std::string& name,
              const WatchOptions& options);

}  // namespace shoal::app
