// A user's own model as a Task.
#pragma once

#include <memory>

#include "shoal/train/tasks/task.h"

namespace shoal {

// Its targets are Batch::labels as they are: classes (negative: none) or numbers (NaN: none). It
// has no Hugging Face files: load() and save() throw unavailable.
std::shared_ptr<Task> own_task(std::unique_ptr<nn::Chain> chain);

}  // namespace shoal
