// shoal checkpoint inspect|convert
#include <algorithm>
#include <cstdio>
#include <memory>

#include "command_line.h"
#include "commands.h"
#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/huggingface.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/convert.h"
#include "shoal/train/checkpoint/inspect.h"
#include "shoal/train/command/merge.h"
#include "shoal/train/trainer/console.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::app {
namespace {

struct InspectOptions {
  std::string directory;
  bool json = false, verify = false, all = false;
};

// For a run's output_dir, returns its newest complete checkpoint. Skipped ones are printed.
std::string checkpoint_in(const std::string& directory) {
  if (!is_directory(directory) || list_checkpoints(directory).empty() ||
      path_exists(directory + "/" + std::string(kCompleteMarker)))
    return directory;
  std::vector<DamagedCheckpoint> damaged;
  const auto newest =
      newest_checkpoint(directory, [&](const std::string& path, const std::string& reason) {
        damaged.push_back({path, reason});
      });
  if (!newest)
    throw none_is_whole(directory, damaged,
                        "name one of its checkpoint-N directories to see what is in it");
  for (const DamagedCheckpoint& one : damaged)
    terminal::print(stderr, "{} is passed over: {}\n", one.path, one.reason);
  return newest->path;
}

// The reason why training and generation refuse config.json; empty if they accept it or do not know
// the model's type.
std::string config_problem(const std::string& directory) {
  const std::string source = directory + "/config.json";
  try {
    if (!path_exists(source)) return {};  // inspect_checkpoint() reports it if it is needed
    const nlohmann::json config = read_json_file(source);
    if (!config.is_object() || nn::is_known_type(nn::model_type_of(config)))
      nn::check_sizes(config, source, directory);
  } catch (const Error& problem) {
    return problem.what();
  }
  return {};
}

// Returns exit status 1, for scripts, if something is missing or the model is refused.
int inspect(const InspectOptions& o) {
  CheckpointContents contents = inspect_checkpoint(checkpoint_in(o.directory), o.verify);
  const std::string problem = config_problem(contents.path);
  // inspect_checkpoint() may have reported the same problem.
  if (!problem.empty() && std::ranges::find(contents.problems, problem) == contents.problems.end())
    contents.problems.push_back(problem);
  if (o.json)
    print_json(to_json(contents));
  else
    terminal::print("{}", describe(contents, o.all));
  return contents.problems.empty() ? kDone : kFailed;
}

int convert(ConvertOptions o, const std::string& dtype, bool merges) {
  o.from = checkpoint_in(o.from);
  if (!dtype.empty()) o.dtype = parse_dtype(dtype);
  Conversion done;
  if (merges) {
    SHOAL_CHECK(o.shards == 0 && o.setup.empty(),
                "--merge writes whole tensors with the adapter's configuration; leave {} out",
                o.shards > 0 ? "--shards" : "--config");
    done = command::merge_adapter({.from = o.from, .to = o.to, .dtype = o.dtype});
  } else {
    ProgressBar bar(stderr, "B");
    o.progress = [&](std::int64_t bytes, std::int64_t total) {
      bar.update(bytes, total, "converting");
    };
    done = convert_checkpoint(o);
  }
  terminal::print("{}: {}\n", o.to,
                  o.shards > 0 ? fmt::format("{} shards", o.shards) : std::string("whole tensors"));
  terminal::print("  {} weights and {} tensors of optimizer state, {}\n", done.tensors, done.states,
                  format_bytes(done.bytes));
  if (!done.carried.empty()) terminal::print("  with {}\n", fmt::join(done.carried, ", "));
  for (const std::string& note : done.notes) terminal::print("note: {}\n", note);
  return 0;
}

}  // namespace

void add_checkpoint(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("checkpoint", "Inspect a checkpoint, and convert it");
  group->require_subcommand(1);

  auto* command = group->add_subcommand(
      "inspect", "List the content of a checkpoint, and the files that it lacks");
  auto i = std::make_shared<InspectOptions>();
  command
      ->add_option("directory", i->directory,
                   "a checkpoint, a Hugging Face model, or an output_dir: its newest checkpoint")
      ->required();
  command->add_flag("--json", i->json, "as JSON, optimizer state included");
  command->add_flag("--all", i->all, "a line for each tensor of optimizer state too");
  command->add_flag("--verify", i->verify, "read every byte and compare with its checksum");
  command->callback([&action, i] { action = [i] { return inspect(*i); }; });

  command = group->add_subcommand(
      "convert", "From parts to whole tensors that transformers opens, or with --shards back");
  auto o = std::make_shared<ConvertOptions>();
  auto dtype = std::make_shared<std::string>();
  command->add_option("from", o->from, "a checkpoint, a model, or an output_dir")->required();
  command->add_option("to", o->to, "a directory that is not there yet")->required();
  command->add_option("--shards", o->shards, "write parts for so many ranks; any number reads them")
      ->check(from_to(1, kMostShards));
  command->add_option("--dtype", *dtype, "of weights; without: as they are")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  auto merges = std::make_shared<bool>(false);
  command->add_flag("--merge", *merges,
                    "FROM is an adapter: write the model that it and its base model make");
  command->add_flag("--weights-only{false}", o->optimizer, "leave the optimizer state behind");
  command->add_option("--config", o->setup,
                      "directory of config.json and tokenizer files; without: FROM");
  command->callback([&action, o, dtype, merges] {
    action = [o, dtype, merges] { return convert(*o, *dtype, *merges); };
  });
}

}  // namespace shoal::app
