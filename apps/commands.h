// The subcommands of `shoal`. Each adds itself to the parser; its action runs after parsing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace CLI {
class App;
}

namespace shoal::app {

// Set by the chosen subcommand; returns the exit status.
using Action = std::function<int()>;

void add_train(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_tokenizer(CLI::App& app, Action& action);
void add_data(CLI::App& app, Action& action);
void add_checkpoint(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_scale(CLI::App& app, Action& action);
void add_jobs(CLI::App& app, Action& action);
void add_env(CLI::App& app, Action& action);
void add_diagnose(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_submit(CLI::App& app, Action& action);

// Requirements of a run on the machine.
struct TrainNeeds {
  struct Path {
    std::string option, value;  // for example "train_file"; one name of those that are given
    bool is_list = false;       // a file that names others, given as @FILE
  };
  bool bf16 = false, gpu = true;
  bool trains = true, predicts = false;
  bool new_model = false;    // config_name or model_type, without an initial model
  std::vector<Path> models;  // model_name_or_path, config_name and tokenizer_name, if given
  std::vector<Path> files;   // train_file, test_file and the like, data and dataset_name, if given
  std::string resume;        // the checkpoint that resume_from_checkpoint names; empty: none
  bool streams = false;      // reads the names of train_file one after the other
  bool reads_rows = false;   // a task that is given and reads files of its machine alone
};
// Parses the words like `shoal train`, reading only options files. Throws invalid_argument or
// similar, one line per problem.
TrainNeeds check_train_words(const std::vector<std::string>& words);
// Throws not_found, one line per path, unless the run's models and files are on this machine or
// remote (s3://).
void check_paths(const TrainNeeds& needs);

// Reports each SHOAL_ variable with an invalid value. Returns the exit status: 1 if there is one.
int report_environment(const std::string& command);
// Prints to standard output. Invalid UTF-8 becomes U+FFFD. indent -1: one line.
void print_json(const nlohmann::ordered_json& value, int indent = 2);

}  // namespace shoal::app
