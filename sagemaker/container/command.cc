#include "shoal/sagemaker/container/command.h"

#include <algorithm>
#include <filesystem>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;

std::string option_name(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

// What the job says itself: its hyperparameters, over the file of its code.
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

 private:
  std::optional<nlohmann::json> find(const std::string& name) const {
    for (const auto& [key, value] : hyperparameters_.items())
      if (option_name(key) == name && !value.is_null()) return nlohmann::json(value);
    if (!file_.is_object()) return std::nullopt;
    if (file_.contains(name)) return file_[name];
    for (const auto& [key, section] : file_.items())  // {"training": {"max_steps": 5}}
      if (section.is_object() && section.contains(name)) return section[name];
    return std::nullopt;
  }
  const Json& hyperparameters_;
  nlohmann::json file_;
};

// The value as a word of a command line.
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
  std::error_code ignored;
  for (fs::recursive_directory_iterator it(directory, ignored), end; !ignored && it != end;
       it.increment(ignored))
    if (it->is_regular_file(ignored) && !it->path().filename().string().starts_with('.'))
      files.push_back(it->path().string());
  std::ranges::sort(files);
  return files;
}

// The first of the channels that the job has.
std::optional<std::string> channel_of(const Contract& c, const std::vector<std::string>& names) {
  const auto found = std::ranges::find_if(
      names, [&c](const std::string& name) { return c.inputs.contains(name); });
  return found == names.end() ? std::nullopt : std::optional(*found);
}

// All ranks share one order of the same files. SageMaker can give each host other ones.
void refuse_sharded_channels(const Contract& c) {
  if (c.hosts.size() == 1) return;
  for (const auto& [name, config] : c.inputs.items())
    if (config.is_object() && config.value("S3DistributionType", "") == "ShardedByS3Key")
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("channel {} is ShardedByS3Key: each of the {} hosts has other files, "
                              "but `shoal train` shares the samples of the same files among all "
                              "ranks",
                              name, c.hosts.size()),
                  "set its distribution to FullyReplicated, or stream it from s3://");
}

using Options = std::vector<std::pair<std::string, std::string>>;

// Files of channels that hold a single one, whatever its name. Where any holds more, none:
// `shoal train` looks for the usual names itself.
Options files_of_channels(const Contract& c, const Said& said) {
  for (const char* name : {"train_file", "validation_file", "test_file", "data", "dataset_name"})
    if (said.has(name)) return {};
  const std::optional<std::string> train = channel_of(c, {"train", "training"});
  std::optional<std::string> test = channel_of(c, {"test"});
  std::optional<std::string> validation = channel_of(c, {"validation", "eval", "dev"});
  if (!said.is_true("do_predict") && test) {
    if (!validation) validation = test;  // as `shoal train` does
    test.reset();
  }
  Options options;
  for (const auto& [option, channel] :
       {std::pair{"train_file", train}, {"validation_file", validation}, {"test_file", test}}) {
    if (!channel) continue;
    const Json& config = c.inputs.at(*channel);
    if (config.is_object() && config.value("TrainingInputMode", "File") == "Pipe")
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("channel {} comes as a pipe, which can be read once only", *channel),
                  "set its input_mode to FastFile");
    const std::string directory = c.path("input/data/" + *channel);
    const std::vector<std::string> files = files_in(directory);
    if (files.size() == 1)
      options.emplace_back(option, files.front());
    else if (std::string_view(option) == "train_file" && said.is_true("streaming"))
      options.emplace_back(option, directory + "/*");
    else
      return {};
  }
  return options;
}

}  // namespace

TrainCommand train_command(const Contract& c, const std::string& shoal, const std::string& code) {
  refuse_sharded_channels(c);
  TrainCommand command;
  command.words = {shoal, "train"};
  std::string file;
  if (!c.program.empty()) {
    if (!c.program.ends_with(".json"))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("entry_point is {}, but this image runs Shoal", c.program),
                  "give a JSON file with options of `shoal train`, or no entry_point");
    file = code + "/" + c.program;
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored))
      throw Error(ErrorCode::not_found, fmt::format("entry_point: there is no {}", file),
                  "look at source_dir, which is packed and uploaded with the job");
    command.words.push_back(file);
  }
  const Said said(c.hyperparameters, file);
  const auto add = [&command](const std::string& name, const std::string& value) {
    command.words.push_back("--" + name);
    command.words.push_back(value);
  };
  const auto fill = [&](const std::string& name, const std::string& value) {
    add(name, value);
    command.notes.push_back(fmt::format("{} {}", name, value));
  };
  for (const auto& [name, value] : c.hyperparameters.items())
    if (!value.is_null() && option_name(name) != "output_dir") add(name, word_of(value));

  // The model's directory is for what is finished.
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
  for (const auto& [option, path] : files_of_channels(c, said)) fill(option, path);
  for (const char* channel : {"model", "pretrained"})
    if (c.inputs.contains(channel) && !said.has("model_name_or_path") && !said.has("model_type"))
      fill("model_name_or_path", c.path(std::string("input/data/") + channel));
  return command;
}

}  // namespace shoal::sagemaker
