// The files of a training job's run that reports read, from the job's output in S3.
#pragma once

#include <string>

#include "aws_words.h"

namespace shoal::app {

// Writes the job's metrics.jsonl, run_settings.json, all_results.json and samples.jsonl, or what
// Hugging Face's Trainer writes in their place, into `directory`, which is made. `job`: a name or
// an ARN.
//
// They come from the job's model.tar.gz, or from the output.tar.gz beside it. The archive is
// streamed through tar and gzip and never stored. If the job has no model (yet), they come from the
// place of its checkpoints. Throws not_found if there is no such job or none of these files.
void fetch_job_run(const AwsWords& words, const std::string& job, const std::string& directory);

}  // namespace shoal::app
