// Checks that a job provides what its run reads, before any machine is paid for.
#pragma once

#include <string>

#include "commands.h"

#include "shoal/sagemaker/job/job.h"
#include "shoal/train/command/needs.h"

namespace shoal::app {

// Adds a problem for each model, tokenizer and file that `shoal train` would certainly not find in
// the job:
// - a path below a channel that the job lacks, including paths in a list of names (streaming) or in
// the job's code;
// - a name that is not a channel, not a file of the job's code (below `directory`), and not in a
// cache that `environment` names, since nothing is downloaded;
// - a checkpoint, if nothing restores it in the job;
// - another absolute path, since nothing else is in a container when its job starts;
// - several files, or an object, where `shoal train` reads one file.
//
// Also reports a run without model, tokenizer or data. Uncertain cases become notices.
//
// The image must be Shoal's. `needs` come from the job's options. `is_whole` is false if further
// options are in git or S3.
void check_inputs(sagemaker::TrainingJob& job, const command::TrainNeeds& needs, bool is_whole,
                  const std::string& directory, sagemaker::Problems& problems);

}  // namespace shoal::app
