#include "submit_inputs.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/command/local_model.h"
#include "shoal/train/command/needs.h"
#include "shoal/train/data/token_shards.h"

namespace shoal::app {
namespace {

using sagemaker::Json;

namespace fs = std::filesystem;

constexpr std::string_view kChannels = "/opt/ml/input/data",
                           kConfiguration = "/opt/ml/input/config", kCode = "/opt/ml/code",
                           kCheckpoints = "/opt/ml/checkpoints";

// True if `path` is `directory` or below it. Both must be without "..".
bool is_within(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) &&
         (path.size() == directory.size() || path[directory.size()] == '/');
}

bool has_pattern(std::string_view name) { return name.find_first_of("*?[") != name.npos; }

// SM_CHANNEL_NAME has no dashes and ignores case.
std::string as_variable(std::string name) {
  for (char& c : name)
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::vector<std::string> channels_of(const Json& request) {
  std::vector<std::string> names;
  if (const Json* const inputs = find_field(request, "InputDataConfig"); inputs != nullptr)
    for (const Json& input : *inputs)
      if (const Json* const name = find_field(input, "ChannelName"))
        names.push_back(name->get<std::string>());
  return names;
}

class Inputs {
 public:
  Inputs(sagemaker::TrainingJob& job, const command::TrainNeeds& needs, bool is_whole,
         const std::string& directory, sagemaker::Problems& problems)
      : job_(job), needs_(needs), is_whole_(is_whole), directory_(directory), problems_(problems) {
    channels_ = channels_of(job.request);
  }

  void check() {
    for (const auto& path : needs_.models) check_path(path, /*is_model=*/true);
    for (const auto& path : needs_.files) check_file(path);
    for (const auto& path : needs_.others) check_path(path, /*is_model=*/false);
    if (!needs_.resume.empty()) check_path({"resume_from_checkpoint", needs_.resume}, false);
    if (!is_whole_) return;
    check_model();
    check_data();
  }

 private:
  // "train, validation", for messages.
  std::string channels() const {
    return channels_.empty() ? "none"
                             : shortened(fmt::format("{}", fmt::join(channels_, ", ")), 1000);
  }
  bool has(std::string_view channel) const {
    return std::ranges::find(channels_, channel) != channels_.end();
  }
  bool has_any(std::initializer_list<const char*> names) const {
    return std::ranges::any_of(names, [&](const char* name) { return has(name); });
  }

  // "/hyperparameters/train_file", or the option's name if it is in the entry point's file.
  std::string place(const std::string& option) const {
    if (const Json* const given = find_field(job_.request, "HyperParameters"))
      for (const auto& [name, value] : given->items()) {
        std::string plain = name;
        std::ranges::replace(plain, '-', '_');
        if (plain == option ||
            (option == "model_name_or_path" && (plain == "model" || plain == "model_name")))
          return "/hyperparameters/" + name;
      }
    return "/entry_point: " + option;
  }
  void add(const command::TrainNeeds::Path& path, std::string_view why) {
    problems_.add(place(path.option),
                  fmt::format("is {}{}, {}", path.is_list ? "@" : "", shortened(path.value), why));
  }

  // Finds a file of the code: in source_dir, or the entry point itself, or a dependency, which has
  // the last part of its path as its name.
  std::optional<fs::path> code_file(const std::string& path) const {
    const fs::path base(directory_);
    if (!job_.code->source_dir.empty() && path_exists(base / job_.code->source_dir / path))
      return base / job_.code->source_dir / path;
    for (const std::string& dependency : job_.code->dependencies) {
      fs::path whole = (base / dependency).lexically_normal();
      if (!whole.has_filename()) whole = whole.parent_path();
      if (is_within(path, whole.filename().string()) && path_exists(whole.parent_path() / path))
        return whole.parent_path() / path;
    }
    return std::nullopt;
  }
  // True if the code contains the path, or files that match it. Also true if the code cannot be
  // checked, because it is in git or is an archive in S3.
  bool in_code(const std::string& path) const {
    if (!job_.code) return !is_whole_;
    if (job_.code->git) return true;  // known only after cloning
    const std::string sure = path.substr(0, path.find_first_of("*?["));
    if (sure == path) return code_file(path).has_value();
    const std::string folder = fs::path(sure).parent_path().string();
    return folder.empty() || code_file(folder).has_value();
  }
  // Reports a path that exists but is of the wrong kind, such as a pipe.
  void check_kind(const command::TrainNeeds::Path& path, const std::string& name) {
    if (!job_.code || job_.code->git) return;
    const auto file = code_file(name);
    const FileKind kind = file ? file_kind(file->string()) : FileKind::absent;
    if (kind == FileKind::other)
      add(path, "which is a pipe or a device in the job's code: give a file");
    else if (kind == FileKind::directory && is_one_file(path))
      add(path, several(path.option));
  }
  // True if the environment names the place of Hugging Face's cache, for example a channel.
  bool has_cache() const {
    const Json* const environment = find_field(job_.request, "Environment");
    if (environment == nullptr) return false;
    return std::ranges::any_of(
        std::array{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"},
        [&](const char* name) { return find_field(*environment, name) != nullptr; });
  }

  // True if the run downloads the model. Reports a job without a network.
  bool may_download(const command::TrainNeeds::Path& path) {
    if (!needs_.downloads || !command::is_hub_name(path.value)) return false;
    const Json* const isolated = find_field(job_.request, "EnableNetworkIsolation");
    if (isolated != nullptr && *isolated == true)
      add(path, "which allow_download cannot get: enable_network_isolation leaves no network");
    return true;
  }

  // Checks a URL. Only options for files accept one, under the rules of one_file.cc and streaming.
  void check_remote(const command::TrainNeeds::Path& path, bool is_file) {
    const std::string scheme = path.value.substr(0, path.value.find("://"));
    const bool is_streamed = needs_.streams && path.option == "train_file";
    if (!is_file)
      problems_.add(place(path.option),
                    "names an object, and objects are not read there: make it a channel of the "
                    "job (inputs)");
    else if (scheme != "s3" && scheme != "pipe")
      add(path,
          "but of objects only those of s3:// are read: make it a channel of the job (inputs)");
    else if (scheme == "pipe" && !is_streamed)
      add(path, "which passes by once: give streaming true and max_steps");
    else if (!is_streamed && (path.value.ends_with('/') || has_pattern(path.value)))
      add(path, several(path.option));
    else if (!is_streamed && needs_.reads_rows)
      add(path, "but this task reads files: make it a channel of the job (inputs)");
  }
  static std::string several(const std::string& option) {
    return option == "train_file"
               ? "which names several files: give streaming true and max_steps, or one file"
               : "which names several files: give one file";
  }
  bool is_one_file(const command::TrainNeeds::Path& path) const {
    return path.option.ends_with("_file") && !(needs_.streams && path.option == "train_file");
  }
  // Only streaming reads "@LIST" and "a.txt,b.txt". Without streaming, they are the name of one
  // file.
  bool is_of_stream(const command::TrainNeeds::Path& path) const {
    const std::string& value = path.value;
    if (!is_one_file(path)) return false;
    const auto comma = value.find(',');
    const std::string second = comma == value.npos ? "" : value.substr(comma + 1);
    return value.starts_with("@/") || second.starts_with('/') || second.find("://") != value.npos;
  }

  void check_file(const command::TrainNeeds::Path& path) {
    if (is_of_stream(path)) return add(path, several(path.option));
    check_path(path, /*is_model=*/false);
  }
  // Checks the names in a list that is part of the job's code.
  void check_listed(const command::TrainNeeds::Path& path) {
    if (!path.is_list || !job_.code || job_.code->git) return;
    const std::string where = place_of(path.value);
    if (!is_within(where, kCode)) return;
    const auto file = code_file(fs::path(where).lexically_relative(kCode).string());
    if (!file || !is_regular_file(file->string())) return;  // look_for() reports it
    for (const std::string& name : names_in_list(file->string()))
      check_path({path.option, name}, /*is_model=*/false);
  }

  // The absolute path, without "..", that a run in the code's directory would use.
  static std::string place_of(const std::string& value) {
    std::string where = (fs::path(kCode) / value).lexically_normal().string();
    while (where.size() > 1 && where.ends_with('/')) where.pop_back();
    return where;
  }
  // The directory in which SageMaker restores checkpoints.
  std::string checkpoints() const {
    const Json* const config = find_field(job_.request, "CheckpointConfig");
    const Json* const local = config == nullptr ? nullptr : find_field(*config, "LocalPath");
    return local == nullptr ? std::string(kCheckpoints) : place_of(local->get<std::string>());
  }

  void check_path(const command::TrainNeeds::Path& path, bool is_model) {
    try {
      look_for(path, is_model);
      check_listed(path);
    } catch (const Error& error) {  // a file system error
      problems_.add(place(path.option), error.what());
    }
  }

  void look_for(const command::TrainNeeds::Path& path, bool is_model) {
    if (!is_local(path.value)) {
      const bool is_file = !is_model && path.option.ends_with("_file");
      return check_remote(path, is_file);
    }
    const std::string value = local_path(path.value), where = place_of(value);
    if (is_within(where, kCode)) {
      const std::string rest = fs::path(where).lexically_relative(kCode).string();
      if (!value.starts_with('/')) return check_name({path.option, rest, path.is_list}, is_model);
      if (where == kCode) return;
      if (!in_code(rest))
        add(path, "but the job's code (source_dir, dependencies) has no such file");
      check_kind(path, rest);
    } else if (is_within(where, kChannels)) {
      check_channel(path, where);
    } else if (is_within(where, checkpoints()) || is_within(where, kCheckpoints)) {
      if (find_field(job_.request, "CheckpointConfig") == nullptr)
        add(path, "but without checkpoint_s3_uri nothing is restored there");
      else if (!is_within(where, checkpoints()))
        add(path, fmt::format("but checkpoints are restored in {}", checkpoints()));
    } else if (!is_within(where, kConfiguration)) {
      add(path,
          "but nothing brings it into the container: make it a channel of the job (inputs) "
          "and give /opt/ml/input/data/CHANNEL/...");
    }
  }

  void check_channel(const command::TrainNeeds::Path& path, const std::string& where) {
    if (where == kChannels) return;  // the directory of all channels
    const std::string rest = where.substr(kChannels.size() + 1);
    const std::string channel = rest.substr(0, rest.find('/'));
    if (!has(channel))
      add(path, fmt::format("but the job has no channel {} (inputs); it has {}", shortened(channel),
                            channels()));
    else if (rest == channel && is_one_file(path))
      add(path, several(path.option));
  }

  // Checks a relative path, or a name that `shoal train` searches for.
  void check_name(const command::TrainNeeds::Path& path, bool is_model) {
    if (in_code(path.value)) return check_kind(path, path.value);
    if (path.option == "config_name" && path.value.starts_with("gpt2")) return;  // a preset
    const bool is_looked_for = is_model || path.option == "dataset_name";
    const std::string last = fs::path(path.value).filename().string();
    if (is_looked_for)
      for (const std::string& channel : channels_)
        if (as_variable(channel) == as_variable(last)) return;
    if (is_model && (has_cache() || may_download(path))) return;
    if (is_looked_for)
      add(path, fmt::format("but no channel of the job has this name, and nothing is downloaded: "
                            "add it to inputs as channel {}; the job's channels: {}",
                            shortened(last), channels()));
    else
      add(path,
          "but neither a channel nor the job's code brings it: make it a channel of the job "
          "(inputs) and give /opt/ml/input/data/CHANNEL/...");
  }

  void check_model() {
    const bool by_channel = has_any({"model", "pretrained"});
    const auto gives = [&](const char* option) {
      return std::ranges::any_of(needs_.models,
                                 [&](const auto& path) { return path.option == option; });
    };
    if (!gives("model_name_or_path") && !needs_.new_model && !by_channel) {
      problems_.add("/inputs",
                    "nothing brings a model: add a channel model (or model_uri), or give "
                    "model_name_or_path, config_name or model_type");
      return;
    }
    if (gives("model_name_or_path") || gives("tokenizer_name") || !needs_.new_model) return;
    // A new model needs a tokenizer, unless its data are prepared tokens.
    const auto text = std::ranges::find_if(needs_.files, [](const auto& path) {
      return path.option == "train_file" && !path.value.ends_with(".shoaltok");
    });
    const bool named = std::ranges::any_of(
        needs_.files, [](const auto& path) { return path.option == "train_file"; });
    if (text != needs_.files.end())
      add(*text,
          "which is text, but nothing brings a tokenizer: give tokenizer_name, a channel of "
          "the job");
    else if (!named)
      job_.notices.emplace_back(
          "the model is new and tokenizer_name is not given: the training channel must hold tokens "
          "of `shoal data prepare` (.shoaltok)");
  }

  // If no file is named, channels are searched.
  void check_data() {
    const auto names_one = [&](const char* option) {
      return std::ranges::any_of(needs_.files, [&](const auto& path) {
        return path.option == option || path.option == "data" || path.option == "dataset_name";
      });
    };
    const bool by_channels = needs_.files.empty();
    const auto check = [&](bool wanted, const char* what, const char* option,
                           std::initializer_list<const char*> names) {
      if (!wanted || names_one(option) || (by_channels && has_any(names))) return;
      problems_.add("/inputs", fmt::format("nothing brings {}: add a channel {}, or give {}; the "
                                           "job's channels: {}",
                                           what, *names.begin(), option, channels()));
    };
    check(needs_.trains, "the training data", "train_file", {"train", "training"});
    check(needs_.predicts, "what to predict (do_predict)", "test_file", {"test"});
  }

  sagemaker::TrainingJob& job_;
  const command::TrainNeeds& needs_;
  bool is_whole_;
  const std::string& directory_;
  sagemaker::Problems& problems_;
  std::vector<std::string> channels_;
};

}  // namespace

void check_inputs(sagemaker::TrainingJob& job, const command::TrainNeeds& needs, bool is_whole,
                  const std::string& directory, sagemaker::Problems& problems) {
  Inputs(job, needs, is_whole, directory, problems).check();
}

}  // namespace shoal::app
