// checkpoint-N directories of transformers' Trainer. They have the names that Shoal's have, and
// weights that Shoal opens, but PyTorch's files for the state of the run, which it does not read.
#pragma once

#include <string>

namespace shoal {

// Whether transformers' Trainer wrote the directory: it has no COMPLETE marker, and files of
// PyTorch's or a trainer_state.json without what Shoal adds. A checkpoint of Shoal's that was cut
// short has neither.
bool is_transformers_checkpoint(const std::string& path);
// "it is a checkpoint of transformers' Trainer, ...": why no run goes on from one, and what to do.
std::string why_not_resumed(const std::string& path);

}  // namespace shoal
