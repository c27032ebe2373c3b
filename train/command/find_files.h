// Finds a run's model, tokenizer and data on this machine from the given names: --model,
// dataset_name, task_name, --data.
#pragma once

#include <string>
#include <vector>

#include "shoal/train/command/local_model.h"
#include "shoal/train/command/setup.h"

namespace shoal::command {

void declare_options(OptionSet& options, NamedData& named);

// Resolves the names of model and tokenizer and reports results in `notices`. With allow_download,
// `fetch` gets those that are not on this machine. Throws not_found if the tokenizer is missing. A
// missing model is not an error here, because another rank of the host may find it.
void name_models(RunArguments& arguments, const FetchModel& fetch,
                 std::vector<std::string>& notices);

// The task that task_name or dataset_name stands for, and why: "task_name is mnli". `task` is empty
// if neither is given or shows it.
struct NamedTask {
  std::string task, reason;
};
NamedTask task_by_names(const RunArguments& arguments);

// Fills in missing arguments; call after name_models(). The task comes from task_name, dataset_name
// or the data. train_file, validation_file and test_file are searched, by their usual names, in
// `data`, dataset_name or SageMaker's channels train, validation and test. Reports choices in
// `notices`. Throws not_found, listing the names searched.
void find_files(RunArguments& arguments, std::vector<std::string>& notices);

}  // namespace shoal::command
