#include "shoal/train/command/needs.h"

#include <utility>

#include <fmt/format.h>

#include "shoal/collectives/select/algorithm_selector.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/command/find_files.h"
#include "shoal/train/command/local_model.h"
#include "shoal/train/command/stream.h"

namespace shoal::command {
namespace {

// Describes a missing path; empty: it exists or is remote.
std::string missing(const TrainNeeds::Path& path, bool is_named) {
  const std::string& value = path.value;
  if (!is_local(value)) return {};
  if (is_named && path_exists(local_model(value))) return {};
  if (path.option == "config_name" && value.starts_with("gpt2")) return {};  // a preset
  try {
    for (const std::string& name : SourceRegistry().match(value))
      if (!path_exists(name)) return fmt::format("{}: there is no {}", path.option, name);
  } catch (const Error& error) {
    return fmt::format("{}: {}", path.option, error.message());
  }
  return {};
}

}  // namespace

TrainNeeds needs_of(const RunArguments& arguments) {
  TrainNeeds needs;
  const ResolvedRun& training = arguments.training;
  const ModelArguments& model = arguments.model;
  const DataArguments& data = arguments.data;
  needs.task = model.task;
  // The task of wikitext follows from the model, which may be on another machine.
  if (needs.task.empty() && !last_part_of(arguments.named.dataset_name).starts_with("wikitext"))
    needs.task = task_by_names(arguments).task;
  needs.bf16 = training.bf16 || training.bf16_full_eval;
  needs.gpu = !training.use_cpu;
  needs.trains = training.do_train;
  needs.predicts = training.do_predict;
  needs.downloads = model.allow_download;
  needs.new_model =
      model.model_name_or_path.empty() && (!model.config_name.empty() || !model.model_type.empty());
  const auto put = [](std::vector<TrainNeeds::Path>& into, const char* option,
                      const std::string& value) {
    if (!value.empty()) into.push_back({option, value});
  };
  put(needs.models, "model_name_or_path", model.model_name_or_path);
  put(needs.models, "config_name", model.config_name);
  put(needs.models, "tokenizer_name", model.tokenizer_name);
  needs.streams = data.streaming && needs.trains;
  needs.reads_rows = !model.task.empty() && model.task != "causal-lm" && model.task != "masked-lm";
  if (needs.streams)
    for (const std::string& name : names_of_shards(data.train_file)) {
      const bool is_list = name.starts_with('@');
      needs.files.push_back({"train_file", is_list ? name.substr(1) : name, is_list});
    }
  else
    put(needs.files, "train_file", data.train_file);
  put(needs.files, "validation_file", data.validation_file);
  put(needs.files, "test_file", data.test_file);
  put(needs.files, "validation_mismatched_file", data.validation_mismatched_file);
  put(needs.files, "test_mismatched_file", data.test_mismatched_file);
  put(needs.files, "data", arguments.named.data);
  if (arguments.named.data.empty())  // with `data`, dataset_name may be a directory in it
    put(needs.files, "dataset_name", arguments.named.dataset_name);
  put(needs.others, "plan", arguments.layout.plan);
  if (arguments.layout.machine.ends_with(".json"))
    put(needs.others, "machine", arguments.layout.machine);
  put(needs.others, "collectives", collectives::rules_file(training.collectives));
  if (training.model_parallel) {
    const auto& partition = training.model_parallel->plan.pipeline.partition;
    if (partition.load) put(needs.others, "partition_file", partition.file);
  }
  if (names_checkpoint(training.resume_from_checkpoint))
    needs.resume = training.resume_from_checkpoint;
  return needs;
}

void check_paths(const TrainNeeds& needs) {
  std::string problems;
  const auto check = [&](const TrainNeeds::Path& path, bool is_named) {
    if (const std::string problem = missing(path, is_named); !problem.empty())
      problems += (problems.empty() ? "" : "\n") + problem;
  };
  for (const auto& path : needs.models)
    if (!needs.downloads || !is_hub_name(path.value)) check(path, true);
  for (const auto& path : needs.files) check(path, path.option == "dataset_name");
  for (const auto& path : needs.others) check(path, false);
  if (!problems.empty())
    throw Error(ErrorCode::not_found, problems, "look at the names, which are relative to here");
}

}  // namespace shoal::command
