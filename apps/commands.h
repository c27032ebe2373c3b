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
void add_predict(CLI::App& app, Action& action);
void add_evaluate(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_tokenizer(CLI::App& app, Action& action);
void add_data(CLI::App& app, Action& action);
void add_checkpoint(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_study(CLI::App& app, Action& action);
void add_jobs(CLI::App& app, Action& action);
void add_env(CLI::App& app, Action& action);
void add_diagnose(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_submit(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_token(CLI::App& app, Action& action);
void add_help(CLI::App& app, Action& action);

// Reports each SHOAL_ variable with an invalid value. Returns kWrongOptions if there is one.
int report_environment(const std::string& command);
// Prints to standard output. Invalid UTF-8 becomes U+FFFD. indent -1: one line.
void print_json(const nlohmann::ordered_json& value, int indent = 2);

}  // namespace shoal::app
