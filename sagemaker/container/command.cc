#include "shoal/sagemaker/container/command.h"

#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/sagemaker/container/environment.h"
#include "shoal/sagemaker/container/launch.h"
#include "shoal/sagemaker/container/rank.h"
#include "shoal/sagemaker/container/script.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;

std::string option_name(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

// Values that the job sets: its hyperparameters, then the JSON file of its code.
class Said {
 public:
  Said(const Json& hyperparameters, const std::string& file) : hyperparameters_(hyperparameters) {
    if (!file.empty()) file_ = read_json_file(file);
  }
  bool has(const std::string& name) const { return find(name).has_value(); }
  std::optional<std::string> text(const std::string& name) const {
    const auto value = find(name);
    if (!value) return std::nullopt;
    return value->is_string() ? value->get<std::string>() : value->dump();
  }
  bool is_true(const std::string& name) const {
    const auto value = text(name);
    return value == "true" || value == "True" || value == "1";
  }
  bool asks_for_cpu() const { return is_true("use_cpu") || is_true("no_cuda"); }

 private:
  std::optional<nlohmann::json> find(const std::string& name) const {
    for (const auto& [key, value] : hyperparameters_.items())
      if (option_name(key) == name && !value.is_null()) return nlohmann::json(value);
    if (!file_.is_object()) return std::nullopt;
    if (const auto* value = find_field(file_, name)) return *value;
    for (const auto& [key, section] : file_.items())  // {"training": {"max_steps": 5}}
      if (const auto* value = find_field(section, name)) return *value;
    return std::nullopt;
  }
  const Json& hyperparameters_;
  nlohmann::json file_;
};

// Formats a value as one word of a command line.
std::string word_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() &&
      std::ranges::none_of(value, [](const Json& x) { return x.is_structured(); })) {
    std::vector<std::string> items;
    for (const Json& item : value) items.push_back(word_of(item));
    return fmt::format("{}", fmt::join(items, ","));
  }
  return value.dump();
}

std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> files;
  if (!path_exists(directory)) return files;
  for (const DirectoryEntry& entry : list_tree(directory))
    if (entry.kind == FileKind::regular &&
        !fs::path(entry.path).filename().string().starts_with('.'))
      files.push_back(entry.path);
  std::ranges::sort(files);
  return files;
}

// Returns the first of `names` that is a channel of the job.
std::optional<std::string> channel_of(const Contract& c, const std::vector<std::string>& names) {
  const auto found = std::ranges::find_if(
      names, [&c](const std::string& name) { return c.inputs.contains(name); });
  return found == names.end() ? std::nullopt : std::optional(*found);
}

// A text from a channel's entry in inputdataconfig.json.
std::string channel_field(const Contract& c, const std::string& channel, const Json& config,
                          const char* field, const char* otherwise) {
  return field_or(config, field, std::string(otherwise),
                  fmt::format("{}, channel {},", c.path("input/config/inputdataconfig.json"),
                              shortened(channel)));
}

// All ranks share one order of the same files. ShardedByS3Key gives each host different files.
void refuse_sharded_channels(const Contract& c) {
  if (c.hosts.size() == 1) return;
  for (const auto& [name, config] : c.inputs.items())
    if (channel_field(c, name, config, "S3DistributionType", "") == "ShardedByS3Key")
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("channel {} is ShardedByS3Key: each of the {} hosts has other files, "
                      "but `shoal train` shares the samples of the same files among all "
                      "ranks",
                      name, c.hosts.size()),
          "set its distribution to FullyReplicated, or stream it from s3:// with shard_by_rank");
}

using Options = std::vector<std::pair<std::string, std::string>>;

bool is_piped(const Contract& c, const std::string& channel) {
  return channel_field(c, channel, c.inputs.at(channel), "TrainingInputMode", "File") == "Pipe";
}

// File name extension that fits the channel's ContentType.
std::string ending_of(const Contract& c, const std::string& channel) {
  std::string type = channel_field(c, channel, c.inputs.at(channel), "ContentType", "text/plain");
  type.resize(std::min(type.find(';'), type.size()));
  if (type == "text/plain" || type.empty()) return ".txt";
  if (type == "text/csv") return ".csv";
  if (type == "text/tab-separated-values") return ".tsv";
  if (type.starts_with("application/json") || type == "application/x-jsonlines") return ".jsonl";
  throw Error(ErrorCode::invalid_argument,
              fmt::format("channel {} comes as a pipe of {}", channel, shortened(type)),
              "text/plain, text/csv and application/jsonlines are read; or set its input_mode to "
              "FastFile");
}

// Returns the path from which the run reads a channel in Pipe mode. If the channel needs
// preparation, appends it to `pipes`.
std::string file_of_pipe(const Contract& c, const Said& said, const std::string& channel,
                         bool trains, std::vector<PipedChannel>& pipes) {
  const auto refuse = [&](const std::string& why, const char* remedy) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("channel {} comes as a pipe{}", channel, why), remedy);
  };
  if (channel_field(c, channel, c.inputs.at(channel), "RecordWrapperType", "None") != "None")
    refuse(" of RecordIO records", "leave record_wrapping out");
  PipedChannel pipe{.prefix = c.path("input/data/" + channel), .file = {}, .fan_out = {}};
  const std::string ending = ending_of(c, channel);
  if (!trains) {
    pipe.file = c.path("output/pipes/" + channel + ending);
    pipes.push_back(pipe);
    return pipe.file;
  }
  if (!said.is_true("streaming"))
    refuse(", which is read once and in its order",
           "add the hyperparameter streaming (and max_steps), or set its input_mode to FastFile");
  pipe.ranks = ranks_of_a_host(c);
  if (pipe.ranks == 1) return "pipe://" + pipe.prefix + ending;
  pipe.fan_out = c.path("output/pipes");
  pipes.push_back(pipe);
  return "pipe://" + pipe.fan_out + "/{local_rank}/" + channel + ending;
}

// Files of channels that hold exactly one file, with any name. If any channel holds more,
// returns nothing, and `shoal train` looks for the usual names itself.
Options files_of_channels(const Contract& c, const Said& said, std::vector<PipedChannel>& pipes) {
  for (const char* name : {"train_file", "validation_file", "test_file", "data", "dataset_name"})
    if (said.has(name)) return {};
  const std::optional<std::string> train = channel_of(c, {"train", "training"});
  std::optional<std::string> test = channel_of(c, {"test"});
  std::optional<std::string> validation = channel_of(c, {"validation", "eval", "dev"});
  if (!said.is_true("do_predict") && test) {
    if (!validation) validation = test;  // as in `shoal train`
    test.reset();
  }
  Options options;
  const bool any_pipe = (train && is_piped(c, *train)) ||
                        (validation && is_piped(c, *validation)) || (test && is_piped(c, *test));
  for (const auto& [option, channel] :
       {std::pair{"train_file", train}, {"validation_file", validation}, {"test_file", test}}) {
    if (!channel) continue;
    const bool trains = std::string_view(option) == "train_file";
    if (is_piped(c, *channel)) {
      options.emplace_back(option, file_of_pipe(c, said, *channel, trains, pipes));
      continue;
    }
    const std::string directory = c.path("input/data/" + *channel);
    const std::vector<std::string> files = files_in(directory);
    if (files.size() == 1)
      options.emplace_back(option, files.front());
    else if (trains && said.is_true("streaming"))
      options.emplace_back(option, directory + "/*");
    else if (any_pipe)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("channel {} has {} files beside a channel that is a pipe", *channel,
                              files.size()),
                  fmt::format("name the one to read in the hyperparameter {}", option));
    else
      return {};
  }
  return options;
}

TrainCommand script_command(const Contract& c, const Programs& programs, const std::string& code) {
  TrainCommand command;
  command.script = c.program;
  command.directory = code;
  command.on_cpu = Said(c.hyperparameters, {}).asks_for_cpu();
  if (has_distribution(c)) {
    command.words = {programs.train, "rank"};
    command.rank_name = kRankName;
  }
  command.words.insert(command.words.end(), {programs.python, c.program});
  const std::vector<std::string> arguments = user_arguments(c.hyperparameters);
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

std::vector<std::string> option_words(const Json& hyperparameters) {
  std::vector<std::string> words;
  for (const auto& [name, value] : hyperparameters.items()) {
    if (value.is_null() || option_name(name) == "output_dir") continue;
    const std::string word = word_of(value);
    if (word.starts_with("--"))  // would be parsed as the next option
      words.push_back(fmt::format("--{}={}", name, word));
    else
      words.insert(words.end(), {"--" + name, word});
  }
  return words;
}

TrainCommand train_command(const Contract& c, const Programs& programs, const std::string& code) {
  if (!c.program.empty() && !is_regular_file(code + "/" + c.program) &&
      (is_script(c.program) || c.program.ends_with(".json")))
    throw Error(ErrorCode::not_found,
                fmt::format("entry_point: there is no {}/{}", code, c.program),
                "look at source_dir, which is packed and uploaded with the job");
  if (is_script(c.program)) return script_command(c, programs, code);
  refuse_sharded_channels(c);
  TrainCommand command;
  command.words = {programs.shoal, "train"};
  command.rank_name = fs::path(programs.shoal).filename().string();
  std::string file;
  if (!c.program.empty()) {
    if (!c.program.ends_with(".json"))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("entry_point is {}, but this image runs Shoal", shortened(c.program)),
                  "give a JSON file with options of `shoal train`, a Python script, or no "
                  "entry_point");
    file = code + "/" + c.program;
    command.words.push_back(file);
  }
  const Said said(c.hyperparameters, file);
  command.on_cpu = said.asks_for_cpu();
  const auto add = [&command](const std::string& name, const std::string& value) {
    command.words.push_back("--" + name);
    command.words.push_back(value);
  };
  const auto fill = [&](const std::string& name, const std::string& value) {
    add(name, value);
    command.notes.push_back(fmt::format("{} {}", name, value));
  };
  const std::vector<std::string> given = option_words(c.hyperparameters);
  command.words.insert(command.words.end(), given.begin(), given.end());

  // Only the finished model belongs in the model's directory.
  const std::string model = c.path("model"), checkpoints = c.path("checkpoints");
  command.output_dir = said.text("output_dir").value_or(model);
  while (command.output_dir.size() > 1 && command.output_dir.ends_with('/'))
    command.output_dir.pop_back();
  if (command.output_dir == model || command.output_dir.starts_with(model + "/"))
    command.output_dir = checkpoints;
  fill("output_dir", command.output_dir);
  if (!said.has("resume_from_checkpoint")) fill("resume_from_checkpoint", "true");
  if (c.is_on("sagemaker_training_compiler_enabled") && !said.has("step_capture"))
    fill("step_capture", "on");
  for (const auto& [option, path] : files_of_channels(c, said, command.pipes)) fill(option, path);
  for (const char* channel : {"model", "pretrained"})
    if (c.inputs.contains(channel) && !said.has("model_name_or_path") && !said.has("model_type"))
      fill("model_name_or_path", c.path(std::string("input/data/") + channel));
  return command;
}

}  // namespace shoal::sagemaker
