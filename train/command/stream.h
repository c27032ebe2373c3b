// --streaming: reads a training set shard by shard, for any task.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/train/command/setup.h"
#include "shoal/train/data/prepare.h"

namespace shoal::command {

// Throws invalid_argument on options that streams do not support. Call before building anything.
void check_streaming(const RunArguments& arguments);

// Throws invalid_argument unless each option for one file names one file that this task can read.
// The error suggests how to read several.
void check_one_file(const RunArguments& arguments, TaskKind kind, const SourceRegistry& sources);

// The names in train_file with --streaming: "a.txt,b/*.jsonl" has two.
std::vector<std::string> names_of_shards(const std::string& train_file);

// Sets how text is tokenized and where tokens are stored.
void set_preparation(PrepareOptions& options, const RunArguments& arguments, const RunSetup& setup,
                     int threads);

// The training set as a stream. The read-ahead thread tokenizes text and parses rows when it
// reaches their shard.
std::shared_ptr<const ShardSet> stream_of(const RunArguments& arguments, const RunSetup& setup,
                                          const World& world);

// True for pipe://PREFIX.ENDING: the pipes PREFIX_0, PREFIX_1, ..., one per epoch, with the line
// format of this ending. "{local_rank}" in the name is replaced by this rank's number on its host.
bool is_pipe(const std::string& name);
std::shared_ptr<const ShardSet> stream_of_pipes(const RunArguments& arguments,
                                                const RunSetup& setup, const World& world);

}  // namespace shoal::command
