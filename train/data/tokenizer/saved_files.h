// Reads a tokenizer's original files, for saving them again. Internal to this folder.
#pragma once

#include <string>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// `path` as for load_tokenizer(). For a directory, returns all files that transformers keeps for a
// tokenizer. For a file, returns the file itself if it has a usual name, and the files in its
// directory that describe it.
std::vector<Tokenizer::File> tokenizer_files_at(const std::string& path);

}  // namespace shoal
