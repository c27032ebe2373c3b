// --streaming: a training set that is read shard by shard, of any task.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run_setup.h"

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/prepare.h"

namespace shoal::app {

// What a stream cannot do; before anything is built.
void check_streaming(const RunArguments& arguments);

// How text becomes tokens, and where they stay.
void set_preparation(PrepareOptions& options, const RunArguments& arguments, const RunSetup& setup,
                     int threads);

// The training set as a stream. Text becomes tokens, and rows samples, when their shard's turn
// comes, on the thread that reads ahead.
std::shared_ptr<const ShardSet> stream_of(const RunArguments& arguments, const RunSetup& setup);

}  // namespace shoal::app
