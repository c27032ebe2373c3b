// Detects checkpoint-N directories of transformers' Trainer. They are named like Shoal's and have
// weights that Shoal opens. Shoal does not read their run state, which is in PyTorch's files.
#pragma once

#include <string>

namespace shoal {

// True if transformers' Trainer wrote the directory. It then has no COMPLETE marker, and either
// PyTorch's files or a trainer_state.json without Shoal's fields. An interrupted checkpoint of
// Shoal's has neither.
bool is_transformers_checkpoint(const std::string& path);
// "it is a checkpoint of transformers' Trainer, ...": why it cannot be resumed, and the remedy.
std::string why_not_resumed(const std::string& path);

}  // namespace shoal
