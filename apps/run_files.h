// Where the model, the tokenizer and the data of a run are on this machine, from the names that it
// was given: --model, dataset_name, task_name, --data.
#pragma once

#include <string>
#include <vector>

#include "run_setup.h"

namespace shoal::app {

void declare_options(OptionSet& options, NamedData& named);

// Both names of the arguments, of model and tokenizer; says in `notices` what was found. not_found
// where the tokenizer is nowhere; a model may be what another rank of the host finds.
void name_models(RunArguments& arguments, std::vector<std::string>& notices);

// Fills what was left out of `arguments`, after name_models(): the task, where task_name,
// dataset_name or the data say it; train_file, validation_file and test_file where `data`,
// dataset_name or SageMaker's channels train, validation and test have them under their usual
// names. Says in `notices` what it chose. not_found with what was looked for.
void find_files(RunArguments& arguments, std::vector<std::string>& notices);

}  // namespace shoal::app
