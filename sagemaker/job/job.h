// Turns a job file, in the terms of Amazon's Hugging Face estimator, into the CreateTrainingJob
// request that version 2.257 of the SageMaker Python SDK would send for the same arguments. Pure:
// reads only its arguments, sends nothing.
//
// docs/internals/sagemaker.md lists the differences from the SDK's request, with reasons.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/sagemaker/job/fields.h"

namespace shoal::sagemaker {

// A channel whose data is on this machine and goes to the bucket of output_path.
struct UploadedChannel {
  std::string name;  // "train"
  std::string key;   // where in the bucket, with '/' at the end
};

struct JobContext {
  std::string region;  // default for files without one; empty: the file needs one
  // The region was given on the command line; the file must not name another.
  bool is_region_asked = false;
  std::chrono::system_clock::time_point now;  // for generated job names
  std::vector<UploadedChannel> uploads = {};  // besides the channels of the file
};

struct GitSource {
  std::string repository, branch, commit;
  std::string username, password, token;  // empty: git finds credentials itself
};

// Code that must be packed and uploaded before the job is created (source.h).
struct SourceCode {
  std::string entry_point;  // a file in source_dir, or a path if that is empty
  std::string source_dir;   // empty: only the entry point is packed
  std::vector<std::string> dependencies;
  std::optional<GitSource> git;  // if set, the paths above are inside it
  std::string upload_to;         // s3://bucket/job/source/sourcedir.tar.gz
  std::string kms_key;           // key of output_path, if the code goes to the same bucket
};

struct TrainingJob {
  std::string name, region;
  Json request;                    // of CreateTrainingJob
  std::optional<SourceCode> code;  // nullopt: no code, or already in S3
  std::vector<std::string> notices;
};

// Throws invalid_argument with all problems, one per line, with JSON paths: wrong types, misspelt
// keys with suggestions, limits of the service, and combinations that cannot work.
TrainingJob make_training_job(const Json& job, const JobContext& context);
// Adds problems to `problems` instead, for callers with further checks. The request lacks the
// invalid parts.
TrainingJob make_training_job(const Json& job, const JobContext& context, Problems& problems);

// Reads the file; checks for duplicate keys and depth.
Json read_job_file(const std::string& path);

// "base-2026-11-23-08-20-59-123", cut to 63 characters.
std::string job_name_from(std::string_view base, std::chrono::system_clock::time_point now);

}  // namespace shoal::sagemaker
