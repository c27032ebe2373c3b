// Packs a job's code as sourcedir.tar.gz, which the SDK uploads before creating the job. It
// contains everything in source_dir, or only the entry point, and the dependencies, at the top.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/job/job.h"

namespace shoal::sagemaker {

// Adds a problem for each path that is missing, or is a pipe or a device. Runs before anything
// costs money. Paths are relative to `directory` unless absolute. Does nothing if the code is in
// git.
void check_source(const SourceCode& code, const std::string& directory, Problems& problems);

// Packs the code into `archive`, from `directory` or, with git_config, from a fresh clone in a
// temporary directory. The bytes depend only on the files: sorted names, no times, no owners, no
// .git.
//
// Runs git, tar and gzip. Throws unavailable if one is missing. If one fails, throws io with the
// last line of its standard error. Throws invalid_argument for problems that check_source() would
// report. git gets credentials through its environment, so they appear in no command line, message
// or file.
void pack_source(const SourceCode& code, const std::string& directory, const std::string& archive);

// Replaces the secrets of git_config in a message.
std::string without_secrets(std::string text, const SourceCode& code);

}  // namespace shoal::sagemaker
