// What only `shoal train` knows about a job that runs it.
#pragma once

#include <string>

#include "aws_words.h"

#include "shoal/sagemaker/job/job.h"

namespace shoal::app {

// Paths in a job file are relative to where it lies, wherever this runs.
std::string directory_of(const std::string& path);

// The job of the file, checked, its code too; its notices are printed. The same for a dry run.
// Where the job runs Shoal's image of this version: its hyperparameters, over the file of its entry
// point (unless that is in git or S3), are options of `shoal train`. What that would refuse, there
// or on the job's instances, is refused here, invalid_argument, with JSON paths. Of another image
// nothing is known.
sagemaker::TrainingJob checked_job(const SubmitWords& words);

}  // namespace shoal::app
