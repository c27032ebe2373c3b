// What only `shoal train` knows about a job that runs it.
#pragma once

#include <string>

#include "shoal/sagemaker/job/job.h"

namespace shoal::app {

// Where the job runs Shoal's image of this version: its hyperparameters, over the file of its entry
// point (below `directory`, unless that is in git or S3), are options of `shoal train`. What that
// would refuse is refused here, invalid_argument, with JSON paths. Of another image nothing is
// known.
void check_run(const sagemaker::TrainingJob& job, const std::string& directory);

}  // namespace shoal::app
