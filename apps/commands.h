// The subcommands of `shoal`. Each adds itself to the parser; what it does runs after parsing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace CLI {
class App;
}

namespace shoal::app {

// Filled by the subcommand that was chosen; its value is the exit status.
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

// What a run asks of the machine.
struct TrainNeeds {
  struct Path {
    std::string option, value;  // "train_file", as it was given
  };
  bool bf16 = false, gpu = true;
  bool trains = true, predicts = false;
  bool new_model = false;    // config_name or model_type, and no model to begin from
  std::vector<Path> models;  // model_name_or_path, config_name and tokenizer_name, if given
  std::vector<Path> files;   // train_file, test_file and the like, data and dataset_name, if given
};
// What `shoal train` would say of these words before it looks at any file but those of options:
// invalid_argument and the like, a line a problem.
TrainNeeds check_train_words(const std::vector<std::string>& words);
// not_found unless the run's models and files are on this machine, or elsewhere (s3://); a line
// each.
void check_paths(const TrainNeeds& needs);

// One line (or one a problem) on standard error: "shoal train: ...".
void report_error(const std::string& command, const std::string& text);
// Reports each SHOAL_ variable whose value its reader would refuse; the exit status, 1 if there is
// one.
int report_environment(const std::string& command);
// On standard output. Bytes that are not UTF-8 become U+FFFD. indent -1: one line.
void print_json(const nlohmann::ordered_json& value, int indent = 2);

}  // namespace shoal::app
