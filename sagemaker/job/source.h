// Packs a job's code as sourcedir.tar.gz, which the SDK uploads before creating the job. It
// contains everything in source_dir, or only the entry point, and the dependencies, at the top.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/job/job.h"

namespace shoal::sagemaker {

// Throws not_found, naming the missing file, before anything costs money. entry_point and
// source_dir are relative to `directory` unless absolute. Does nothing if the code is in git.
void check_source(const SourceCode& code, const std::string& directory);

// Packs the code into `archive`, from `directory` or, with git_config, from a fresh clone in a
// temporary directory. The bytes depend only on the files: sorted names, no times, no owners, no
// .git.
//
// Runs git, tar and gzip. Throws unavailable if one is missing, and io with its last line if it
// fails. git gets credentials through its environment, so they appear in no command line, message
// or file.
void pack_source(const SourceCode& code, const std::string& directory, const std::string& archive);

// Replaces the secrets of git_config in a message.
std::string without_secrets(std::string text, const SourceCode& code);

}  // namespace shoal::sagemaker
