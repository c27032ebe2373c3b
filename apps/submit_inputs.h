// Checks that a job provides what its run reads, before any machine is paid for.
#pragma once

#include <string>

#include "commands.h"

#include "shoal/sagemaker/job/job.h"

namespace shoal::app {

// Adds a problem for each model, tokenizer and file that `shoal train` would certainly not find in
// the job:
// - a path below a channel that the job lacks;
// - a name that is no channel, no file of the job's code (below `directory`), and not in a cache
//   named by `environment`, since nothing is downloaded;
// - another absolute path outside /opt/ml.
//
// Also reports a run without model, tokenizer or data. Uncertain cases become notices.
//
// The image must be Shoal's. `needs` come from the job's options. `is_whole` is false if further
// options are in git or S3.
void check_inputs(sagemaker::TrainingJob& job, const TrainNeeds& needs, bool is_whole,
                  const std::string& directory, sagemaker::Problems& problems);

}  // namespace shoal::app
