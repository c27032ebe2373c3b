// A user's own model as a Task.
#pragma once

#include <memory>

#include "shoal/train/tasks/task.h"

namespace shoal {

// The targets are Batch::labels, unchanged: classes (negative: no target) or numbers (NaN: no
// target). There are no Hugging Face files, so load() and save() throw unavailable.
std::shared_ptr<Task> own_task(std::unique_ptr<nn::Chain> chain);

}  // namespace shoal
