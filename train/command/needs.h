// Requirements of a run on its machine, derived only from its options.
#pragma once

#include "shoal/train/command/setup.h"

namespace shoal::command {

struct TrainNeeds {
  struct Path {
    std::string option, value;  // "train_file"; the path, or one path of the option's list
    bool is_list = false;       // a file that names others, given as @FILE
  };
  std::string task;  // as given, or as task_name or dataset_name name it; empty: neither does
  bool bf16 = false, gpu = true;
  bool trains = true, predicts = false;
  bool downloads = false;    // the run may download its models
  bool new_model = false;    // trains a new model from config_name or model_type
  std::vector<Path> models;  // model_name_or_path, config_name and tokenizer_name, if given
  std::vector<Path> files;   // train_file, test_file and the like, data and dataset_name, if given
  std::vector<Path> others;  // plan, machine, the partition_file to load, @FILE of collectives
  std::string resume;        // the checkpoint that resume_from_checkpoint names; empty: none
  bool streams = false;      // train_file is a list of shards, which are read in sequence
  bool reads_rows = false;   // the given task reads only local files
};
TrainNeeds needs_of(const RunArguments& arguments);
// Parses the words like `shoal train`, reading only options files. Throws invalid_argument or
// similar, one line per problem.
TrainNeeds check_train_words(const std::vector<std::string>& words);
// Throws not_found, one line per path, unless the run's models and files are on this machine or
// remote (s3://).
void check_paths(const TrainNeeds& needs);

}  // namespace shoal::command
