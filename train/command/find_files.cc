#include "shoal/train/command/find_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/command/local_model.h"
#include "shoal/train/metrics/glue.h"
#include "shoal/train/tasks/classification/glue.h"

namespace shoal::command {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// The task for a task_name. run_ner has three names; any other name is one of GLUE's.
std::string task_named(const std::string& task_name) {
  for (const char* tags : {"ner", "pos", "chunk"})
    if (task_name == tags) return "token-classification";
  return "text-classification";
}

// True if the options show that the model is an encoder without a decoder.
bool is_encoder(const ModelArguments& model) {
  const auto is = [](const std::string& type) {
    return !type.empty() && std::ranges::count(nn::causal_lm_types(), type) == 0 &&
           !nn::is_encoder_decoder_type(type);
  };
  if (!model.model_type.empty()) return is(model.model_type);
  std::string config =
      !model.model_name_or_path.empty() ? model.model_name_or_path : model.config_name;
  if (is_directory(config)) config += "/config.json";
  return is_regular_file(config) && is(nn::model_type_of(read_json_file(config)));
}

// The task of a data set by its name; empty if the name does not show it.
std::string task_of_dataset(const std::string& dataset, const ModelArguments& model) {
  const std::string name = last_part_of(dataset);
  if (name.starts_with("squad")) return "question-answering";
  if (name.starts_with("conll")) return "token-classification";
  if (name == "glue") return "text-classification";
  if (name.starts_with("wikitext")) return is_encoder(model) ? "masked-lm" : "causal-lm";
  return {};
}

bool is_table(const std::string& file) {
  return file.ends_with(".parquet") || file.ends_with(".arrow");
}

// How Parquet or Arrow files become those that this program reads.
std::string table_remedy(const std::string& path) {
  return fmt::format(
      "run `python -m shoal.data '{}' DIRECTORY`, and train on the files in DIRECTORY", path);
}

// One split of a data set, with the names of its files.
struct Part {
  const char* option;  // train_file
  Names stems;
};
const Part kTrain{"train_file", {"train"}};
const Part kValidation{"validation_file", {"validation", "dev", "valid"}};
const Part kTest{"test_file", {"test"}};

Names candidates(const Part& part, TaskKind kind, const DataArguments& data) {
  Names names;
  const auto add = [&](const Names& stems, const Names& endings) {
    for (const std::string& stem : stems)
      for (const std::string& ending : endings) names.push_back(stem + ending);
  };
  const bool train = &part == &kTrain, test = &part == &kTest;
  switch (kind) {
    case TaskKind::question_answering: {
      const Names versions =
          data.version_2_with_negative ? Names{"-v2.0.json"} : Names{"-v1.1.json"};
      add(part.stems, versions);
      add(part.stems, {".json"});
      break;
    }
    case TaskKind::text_classification:
    case TaskKind::summarization:
    case TaskKind::translation:
      add(part.stems, {".tsv", ".csv", ".jsonl"});
      break;
    case TaskKind::token_classification:
      add(part.stems, {".conll", ".txt", ".tsv", ".jsonl", ".json", ".csv"});
      add({train ? "eng.train" : test ? "eng.testb" : "eng.testa"}, {""});
      break;
    case TaskKind::causal_lm:
    case TaskKind::masked_lm:
    case TaskKind::span_corruption:
    case TaskKind::denoising:
      add(part.stems, {".shoaltok", ".txt", ".jsonl", ".json"});
      for (const std::string& stem : part.stems) add({"wiki." + stem}, {".tokens", ".raw"});
      break;
  }
  return names;
}

class Finder {
 public:
  Finder(RunArguments& arguments, std::vector<std::string>& notices)
      : a_(arguments), notices_(notices) {}

  void find() {
    name_task();
    find_bases();
    try {
      find_in_bases();
    } catch (const Error& problem) {
      if (problem.code() == ErrorCode::not_found)
        for (const fs::path& base : bases_)
          for (const DirectoryEntry& entry : list_tree(base))
            if (is_table(entry.name))
              throw Error(problem.code(), problem.message(),
                          "the directory has Parquet or Arrow files: " + table_remedy(base));
      throw;
    }
  }

 private:
  void find_in_bases() {
    const DataArguments& data = a_.data;
    const bool evaluates = a_.training.do_eval || a_.training.eval_strategy != Interval::no ||
                           a_.training.eval_on_start;
    if (bases_.empty()) return;
    if (is_regular_file(bases_.front())) {
      fill(a_.training.do_train ? a_.data.train_file : a_.data.validation_file, bases_.front());
      return;
    }
    if (a_.model.task.empty() && has_rows()) say_task("text-classification", "of its rows");
    const TaskKind kind = choose_model(a_.model).kind;
    if (a_.training.do_train) fill(a_.data.train_file, need(kTrain, kind, GlueSplit::train));
    if (evaluates && data.validation_file.empty())
      fill(a_.data.validation_file, some(kValidation, kind, GlueSplit::validation));
    if (a_.training.do_predict) fill(a_.data.test_file, need(kTest, kind, GlueSplit::test));
    // MNLI's mismatched part; not used if the first part was given explicitly.
    if (!validation_mismatched_.empty() && a_.training.do_eval)
      fill(a_.data.validation_mismatched_file, validation_mismatched_);
    if (!test_mismatched_.empty()) fill(a_.data.test_mismatched_file, test_mismatched_);
  }

  void say_task(const std::string& task, const std::string& why) {
    a_.model.task = task;
    notices_.push_back(fmt::format("task: {}, because {}", task, why));
  }

  void name_task() {
    if (!a_.model.task.empty()) return;
    const NamedTask named = task_by_names(a_);
    if (!named.task.empty()) say_task(named.task, named.reason);
    if (named.task == "question-answering" && last_part_of(a_.named.dataset_name) == "squad_v2" &&
        a_.data.task_name.empty())
      a_.data.version_2_with_negative = true;
  }

  // Finds the directories that may contain the data.
  void find_bases() {
    const DataArguments& data = a_.data;
    const NamedData& named = a_.named;
    if (!named.data.empty()) {
      refuse_remote("data", named.data);
      if (!path_exists(named.data))
        throw Error(ErrorCode::not_found, fmt::format("data: there is no {}", named.data),
                    "give a directory or a file");
      const fs::path inside = fs::path(named.data) / named.dataset_name;
      bases_ = {!named.dataset_name.empty() && path_exists(inside) ? inside : fs::path(named.data)};
    } else if (!data.train_file.empty() || !data.validation_file.empty() ||
               !data.test_file.empty()) {
      return;  // files were named explicitly
    } else if (!named.dataset_name.empty()) {
      refuse_remote("dataset_name", named.dataset_name);
      const auto there = sagemaker_channel(last_part_of(named.dataset_name));
      if (!path_exists(named.dataset_name) && !there)
        throw Error(ErrorCode::not_found,
                    fmt::format("dataset_name {}: there is neither such a directory or file, nor "
                                "such a channel of SageMaker",
                                named.dataset_name),
                    "give --data DIRECTORY; nothing is downloaded");
      bases_ = {path_exists(named.dataset_name) ? named.dataset_name : *there};
    } else {
      for (const char* name : {"train", "training", "validation", "test"})
        if (const auto there = sagemaker_channel(name)) bases_.emplace_back(*there);
      of_channels_ = true;
      return;
    }
    // wikitext-2-v1 is also found as wikitext-2.
    const std::string& config = named.dataset_config_name;
    if (config.empty()) return;
    std::string short_name = config;
    if (config.ends_with("-v1")) short_name.erase(config.size() - 3);
    for (const std::string& name : {config, short_name})
      if (const fs::path inside = bases_.front() / name; path_exists(inside)) {
        bases_ = {inside};
        return;
      }
  }

  bool has_rows() const {
    for (const fs::path& base : bases_)
      for (const char* ending : {".tsv", ".csv"})
        if (path_exists(base / (std::string("train") + ending))) return true;
    return false;
  }

  static void fill(std::string& file, const fs::path& found) {
    if (file.empty()) file = found.string();
  }

  std::string need(const Part& part, TaskKind kind, GlueSplit split) {
    std::string found = some(part, kind, split);
    if (found.empty())
      throw Error(
          ErrorCode::not_found,
          fmt::format("{}: no {} for {}; looked for {}", fmt::join(bases_text(), ", "), part.option,
                      to_string(kind), fmt::join(candidates(part, kind, a_.data), ", ")),
          fmt::format("give --{}", part.option));
    return found;
  }

  // Returns a file of the split. If there is none, logs that and returns an empty text.
  std::string some(const Part& part, TaskKind kind, GlueSplit split) {
    if (kind == TaskKind::text_classification && !a_.data.task_name.empty()) return of_glue(split);
    const Names names = candidates(part, kind, a_.data);
    for (const fs::path& base : bases_)
      for (const std::string& name : names)
        if (is_regular_file(base / name)) {
          notices_.push_back(fmt::format("{}: {}", part.option, (base / name).string()));
          return (base / name).string();
        }
    if (&part == &kValidation && of_channels_ && sagemaker_channel("test") &&
        a_.data.validation_split_percentage == 0)
      return some(kTest, kind, split);
    if (&part == &kValidation)
      notices_.push_back(fmt::format("there is no {} in {}; looked for {}", part.option,
                                     fmt::join(bases_text(), ", "), fmt::join(names, ", ")));
    return {};
  }

  std::string of_glue(GlueSplit split) {
    const GlueTask& task = glue_task(a_.data.task_name);
    std::vector<GlueFile> files;
    try {
      files = glue_files(bases_.front().string(), task, split);
    } catch (const Error& none) {
      // Microsoft's MRPC has only a training and a test set.
      if (split != GlueSplit::validation || task.name == "mnli") throw;
      notices_.push_back(fmt::format("there is no validation_file: {}", none.message()));
      return {};
    }
    for (const GlueFile& file : files)
      notices_.push_back(fmt::format("{}: {}", file.part, file.path));
    const bool own = split == GlueSplit::validation ? !a_.data.validation_file.empty()
                                                    : !a_.data.test_file.empty();
    if (files.size() > 1 && !own)
      (split == GlueSplit::validation ? validation_mismatched_ : test_mismatched_) = files[1].path;
    return files.front().path;
  }

  Names bases_text() const {
    Names all;
    for (const fs::path& base : bases_) all.push_back(base.string());
    return all;
  }

  RunArguments& a_;
  std::vector<std::string>& notices_;
  std::vector<fs::path> bases_;
  std::string validation_mismatched_, test_mismatched_;  // MNLI's, found beside the matched ones
  // channels train, validation, test: without validation, evaluates on test
  bool of_channels_ = false;
};

}  // namespace

void declare_options(OptionSet& options, NamedData& named) {
  options.section("data")
      .string("data", &named.data,
              {.help = "a directory with the files above under their usual names (train-v1.1.json, "
                       "train.tsv, wiki.train.tokens, ...), or the training file"})
      .string("dataset_name", &named.dataset_name,
              {.help = "a directory, one in `data`, or a channel of SageMaker; squad, conll2003, "
                       "glue and wikitext say the task too; nothing is downloaded"})
      .string("dataset_config_name", &named.dataset_config_name,
              {.help = "a directory in it: wikitext-103-v1"});
}

void name_models(RunArguments& arguments, const FetchModel& fetch,
                 std::vector<std::string>& notices) {
  for (std::string* name : {&arguments.model.model_name_or_path, &arguments.model.tokenizer_name}) {
    std::string found = local_model(*name);
    if (arguments.model.allow_download && is_hub_name(found) && !path_exists(found)) {
      if (!fetch)
        throw Error(ErrorCode::unavailable, "allow_download: this program downloads nothing",
                    how_to_get(found));
      found = fetch(found);
    }
    if (found != *name) {
      notices.push_back(fmt::format("{}: {}", *name, found));
      if (name == &arguments.model.model_name_or_path) arguments.model.asked_model = *name;
    }
    *name = std::move(found);
  }
  const std::string& tokenizer = arguments.model.tokenizer_name;
  if (!tokenizer.empty() && !path_exists(tokenizer))
    throw Error(ErrorCode::not_found,
                fmt::format("tokenizer_name {}: {}", tokenizer, not_found_anywhere(tokenizer)),
                fmt::format("give a directory, a tokenizer.json, a vocab.txt or a *.model; {}",
                            how_to_get(tokenizer)));
}

NamedTask task_by_names(const RunArguments& arguments) {
  const std::string& name = arguments.data.task_name;
  const std::string& dataset = arguments.named.dataset_name;
  if (!name.empty()) return {task_named(name), "task_name is " + name};
  std::string task = task_of_dataset(dataset, arguments.model);
  return {std::move(task), "dataset_name is " + dataset};
}

void find_files(RunArguments& arguments, std::vector<std::string>& notices) {
  DataArguments& data = arguments.data;
  for (std::string* file : {&data.train_file, &data.validation_file, &data.test_file,
                            &data.validation_mismatched_file, &data.test_mismatched_file})
    *file = local_path(*file);
  Finder(arguments, notices).find();
  for (const std::string* file : {&data.train_file, &data.validation_file, &data.test_file,
                                  &data.validation_mismatched_file, &data.test_mismatched_file})
    if (is_table(*file))
      throw Error(ErrorCode::invalid_argument, *file + " is a Parquet or Arrow file",
                  table_remedy(*file));
  if (!data.validation_file.empty() && data.validation_split_percentage > 0)
    notices.emplace_back("validation_split_percentage has no effect: there is a validation_file");
}

}  // namespace shoal::command
