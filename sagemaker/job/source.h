// The code of a job as one archive, sourcedir.tar.gz, which the SDK uploads before it creates the
// job: everything in source_dir, or the entry point alone, at its top, and the dependencies.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/job/job.h"

namespace shoal::sagemaker {

// Where entry_point and source_dir are looked for, unless they are absolute; a check that costs
// nothing: not_found, naming the file that is missing. Does nothing where the code is in git.
void check_source(const SourceCode& code, const std::string& directory);

// Packs the code into `archive`, from `directory` or, with git_config, from a fresh clone in a
// temporary directory. The bytes depend on the files alone: names in order, no times, no owners,
// no .git. Runs git, tar and gzip: unavailable where one is missing, io with its last line where it
// fails. Credentials reach git by its environment: they stand in no command line, message or file.
void pack_source(const SourceCode& code, const std::string& directory, const std::string& archive);

// Secrets of git_config, in the text of a message, replaced.
std::string without_secrets(std::string text, const SourceCode& code);

}  // namespace shoal::sagemaker
