// A job file, in the terms of Amazon's Hugging Face estimator, becomes the request
// CreateTrainingJob that version 2.257 of the SageMaker Python SDK would send for the same
// arguments. Pure: nothing is read but what is passed, nothing is sent.
//
// What differs from the SDK's request, and why, stands in docs/sagemaker_jobs.md.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/sagemaker/job/fields.h"

namespace shoal::sagemaker {

struct JobContext {
  std::string region;                         // where the file names none; empty: it must
  bool is_region_asked = false;               // on the command line: the file may name no other
  std::chrono::system_clock::time_point now;  // for the name of a job that has none
};

struct GitSource {
  std::string repository, branch, commit;
  std::string username, password, token;  // empty: what git finds itself
};

// What is to be packed and uploaded before the job is created (source.h).
struct SourceCode {
  std::string entry_point;  // a file in source_dir, or a path where that is empty
  std::string source_dir;   // empty: the entry point alone is packed
  std::vector<std::string> dependencies;
  std::optional<GitSource> git;  // the paths above are inside it
  std::string upload_to;         // s3://bucket/job/source/sourcedir.tar.gz
  std::string kms_key;           // of output_path, where the code goes to the same bucket
};

struct TrainingJob {
  std::string name, region;
  Json request;                    // of CreateTrainingJob
  std::optional<SourceCode> code;  // nothing: there is none, or it is in S3 already
  std::vector<std::string> notices;
};

// Throws invalid_argument with everything that is wrong, one a line, each with its JSON path: wrong
// types, misspelt keys with the nearest, every limit of the service, and what cannot work.
TrainingJob make_training_job(const Json& job, const JobContext& context);
// Adds them to `problems` instead, for who has more to check; the request then lacks what was
// wrong.
TrainingJob make_training_job(const Json& job, const JobContext& context, Problems& problems);

// The file, checked for keys that stand twice and for depth.
Json read_job_file(const std::string& path);

// "base-2026-11-23-08-20-59-123", cut to 63 characters.
std::string job_name_from(std::string_view base, std::chrono::system_clock::time_point now);

}  // namespace shoal::sagemaker
