// Carries out the runs of a study as SageMaker jobs.
#pragma once

#include <string>

#include "aws_words.h"
#include "study/study.h"

namespace shoal::app {

struct JobPlace {
  AwsWords aws;
  std::string directory;         // to which paths in the job file are relative
  double interval_seconds = 10;  // between questions
};

// Creates the job, waits for its end and reads its output. `directory` (the run's) gets job.json
// with the job's name before the job is created, and then the run's metrics. If job.json names a
// job that runs or has completed, that job is used. Throws if the job fails.
StudyResult run_job(const StudyOptions& options, const StudyCell& cell, const Json& job,
                    const JobPlace& place, const std::string& directory);

}  // namespace shoal::app
