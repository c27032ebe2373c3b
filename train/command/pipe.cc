// --train_file pipe://PREFIX.ENDING: reads a training set from named pipes.
#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/train/command/stream.h"
#include "shoal/train/data/pipe_shards.h"
#include "shoal/train/data/token_shards.h"

namespace shoal::command {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kScheme = "pipe://";
constexpr std::string_view kLocalRank = "{local_rank}";

// Formats that can be split between any two lines or quoted rows.
std::vector<std::string_view> piped_endings(TaskKind kind) {
  switch (kind) {
    case TaskKind::causal_lm:
    case TaskKind::masked_lm:
    case TaskKind::span_corruption:
    case TaskKind::denoising:
      return {".txt", ".jsonl"};
    case TaskKind::text_classification:
    case TaskKind::summarization:
    case TaskKind::translation:
      return {".jsonl", ".csv"};
    case TaskKind::token_classification:
      return {".jsonl"};
    case TaskKind::question_answering:
      break;
  }
  return {};
}

PipeOptions pipe_options(const std::string& train_file, const RunSetup& setup, const World& world) {
  std::string name = train_file.substr(kScheme.size());
  if (const auto at = name.find(kLocalRank); at != std::string::npos)
    name.replace(at, kLocalRank.size(), std::to_string(world.local_rank));
  else if (world.local_size > 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("train_file is {}, but {} ranks of this host would read one pipe",
                            train_file, world.local_size),
                "give each its own, with {local_rank} in the name");
  const std::string ending = fs::path(name).extension().string();
  const auto possible = piped_endings(setup.kind);
  if (std::ranges::find(possible, ending) == possible.end())
    throw Error(ErrorCode::invalid_argument,
                possible.empty()
                    ? fmt::format("train_file is {}, but {} reads whole files", train_file,
                                  to_string(setup.kind))
                    : fmt::format("train_file is {}; through a pipe {} reads {}", train_file,
                                  to_string(setup.kind), fmt::join(possible, " and ")),
                "FastFile mode streams the same objects as files");
  name.resize(name.size() - ending.size());
  return {.prefix = name, .ending = ending, .has_rows = ending == ".csv"};
}

// A piece's tokens are in an unlinked file, which disappears with the dataset.
PipeShards::Opening text_opening(TokenShardOptions options) {
  return [options = std::move(options)](std::string text, const std::string& name) {
    PrepareOptions prepare = options.prepare;
    const ScratchDirectory folder(prepare.output_directory, "pipe");
    prepare.output_directory = folder.path();
    auto source = make_memory_source(std::move(text), name);
    prepare.sources.add("piece", [source](const std::string&) { return source; });
    prepare.inputs = {"piece://" + name};
    return samples_of(TokenFile::open(prepare_data(*options.tokenizer, prepare).train.path),
                      options);
  };
}

PipeShards::Opening row_opening(std::shared_ptr<const TaskData> data, const Opening& opening,
                                const std::string& directory) {
  return [data = std::move(data), opening, directory](const std::string& text,
                                                      const std::string& name) {
    const ScratchDirectory folder(directory, "pipe");
    Opening piece = opening;
    piece.path = folder / fs::path(name).filename().string();
    write_file(piece.path, text);
    std::vector<std::string> unused;  // skipped rows are reported only for whole files
    return data->open(piece, unused);
  };
}

}  // namespace

bool is_pipe(const std::string& name) { return name.starts_with(kScheme); }

std::shared_ptr<const ShardSet> stream_of_pipes(const RunArguments& a, const RunSetup& setup,
                                                const World& world) {
  PipeOptions options = pipe_options(a.data.train_file, setup, world);
  PrepareOptions prepare;
  set_preparation(prepare, a, setup, 1);
  if (setup.samples)
    return std::make_shared<PipeShards>(std::move(options),
                                        row_opening(setup.samples,
                                                    {.path = {},
                                                     .tokenizer = setup.tokenizer,
                                                     .max_length = setup.block_size,
                                                     .is_shard = true,
                                                     .threads = prepare.threads},
                                                    prepare.output_directory));
  SHOAL_CHECK(setup.tokenizer != nullptr, "{} is text, and there is no tokenizer",
              a.data.train_file);
  prepare.may_be_empty = true;
  return std::make_shared<PipeShards>(
      std::move(options),
      text_opening({.tokenizer = setup.tokenizer,
                    .prepare = std::move(prepare),
                    .block_size = setup.text_tokens,
                    .line_by_line = setup.kind == TaskKind::masked_lm && a.data.line_by_line,
                    .vocab_size = setup.task->vocabulary()}));
}

}  // namespace shoal::command
