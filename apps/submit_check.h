// Checks of a job that need knowledge of `shoal train`.
#pragma once

#include <string>

#include "aws_words.h"
#include "local_data.h"

#include "shoal/sagemaker/job/job.h"

namespace shoal::app {

// Paths in a job file are relative to its directory.
std::string directory_of(const std::string& path);

// Reads and checks the job and its code. Also used for dry runs.
//
// If the job runs Shoal's image of this version, its hyperparameters, and the file of its entry
// point (unless that is in git or S3), are options of `shoal train`. Throws invalid_argument, with
// JSON paths, if `shoal train` would refuse them or the job's instances cannot run them. Other
// images are not checked.
struct CheckedJob {
  sagemaker::TrainingJob job;
  LocalData data;    // of --upload
  std::string task;  // of `shoal train`; empty: not known before the job starts
};
CheckedJob checked_job(const SubmitWords& words);
// The same for a job file's content; paths are relative to `directory`.
CheckedJob checked_job(const sagemaker::Json& file, const std::string& directory,
                       const AwsWords& aws, const LocalData& data = {});
// Prints what may go wrong with the job to standard error.
void print_notices(const sagemaker::TrainingJob& job);

}  // namespace shoal::app
