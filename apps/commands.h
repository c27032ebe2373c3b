// The subcommands of `shoal`. Each adds itself to the parser; what it does runs after parsing.
#pragma once

#include <functional>
#include <string>
#include <vector>

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

// What `shoal train` would say of these words before it looks at any data: invalid_argument and the
// like, a line a problem. Else what they ask of the machine.
struct TrainNeeds {
  bool bf16 = false, gpu = true;
};
TrainNeeds check_train_words(const std::vector<std::string>& words);

// One line (or one a problem) on standard error: "shoal train: ...".
void report_error(const std::string& command, const std::string& text);

}  // namespace shoal::app
