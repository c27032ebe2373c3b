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

// The options that take one file name one, where this task can read it; the error says what reads
// several.
void check_one_file(const RunArguments& arguments, TaskKind kind, const SourceRegistry& sources);

// How text becomes tokens, and where they stay.
void set_preparation(PrepareOptions& options, const RunArguments& arguments, const RunSetup& setup,
                     int threads);

// The training set as a stream. Text becomes tokens, and rows samples, when their shard's turn
// comes, on the thread that reads ahead.
std::shared_ptr<const ShardSet> stream_of(const RunArguments& arguments, const RunSetup& setup,
                                          const World& world);

// pipe://PREFIX.ENDING: the pipes PREFIX_0, PREFIX_1, ..., an epoch each, with lines as in a file
// of this ending; "{local_rank}" in it becomes this rank's number on its host.
bool is_pipe(const std::string& name);
std::shared_ptr<const ShardSet> stream_of_pipes(const RunArguments& arguments,
                                                const RunSetup& setup, const World& world);

}  // namespace shoal::app
