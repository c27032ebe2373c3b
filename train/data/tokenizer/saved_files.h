// A tokenizer's files as they were read, to be saved again. Internal to this room.
#pragma once

#include <string>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// `path`: as load_tokenizer() takes it. Of a directory all that transformers keeps for a tokenizer;
// of a file the file, where it has a usual name, and what lies beside it to describe it.
std::vector<Tokenizer::File> tokenizer_files_at(const std::string& path);

}  // namespace shoal
