// Whether a job brings what its run reads: found before any machine is paid for.
#pragma once

#include <string>

#include "commands.h"

#include "shoal/sagemaker/job/job.h"

namespace shoal::app {

// Adds to `problems` each model, tokenizer and file that `shoal train` would certainly not find in
// the job: a path below a channel that the job has not; a name that is neither a channel, a file of
// the job's code (below `directory`), nor in a cache that `environment` names (nothing is
// downloaded); any other absolute path outside /opt/ml. And a run that nothing brings a model, a
// tokenizer or data. Where it is not certain, a notice. The image is Shoal's; `needs` are of the
// job's options, which are not all of them if they lie in git or S3 (`is_whole` false).
void check_inputs(sagemaker::TrainingJob& job, const TrainNeeds& needs, bool is_whole,
                  const std::string& directory, sagemaker::Problems& problems);

}  // namespace shoal::app
