// shoal help COMMAND...: the same as `shoal COMMAND... --help`; and help on topics.
#include <memory>

#include "commands.h"
#include "sources.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/command/recipes.h"
#include "shoal/train/command/train.h"

namespace shoal::app {
namespace {

constexpr const char* kExitStatus = "exit-status";
constexpr const char* kRecipes = "recipes";

void print_exit_statuses() {
  terminal::print("Exit statuses of all programs:\n\n");
  for (const auto& [status, meaning] : exit_statuses())
    terminal::print("  {:<8} {}\n", status, meaning);
  terminal::print("\nPrograms that differ:\n\n");
  for (const auto& [program, difference] : exit_status_exceptions())
    terminal::print("  {}: {}\n", program, difference);
}

void print_recipes() {
  terminal::print(
      "Option files of `shoal train` that are built in; `shoal help recipes NAME` prints "
      "one:\n\n");
  for (const command::Recipe& recipe : command::recipes()) {
    const nlohmann::json options = parse_json(recipe.json, recipe.name);
    terminal::print("  {}\n      {}\n", recipe.name,
                    field_or(options, "_comment", std::string(), recipe.name));
  }
}

const CLI::App& command_in(const CLI::App& parent, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : parent.get_subcommands(nullptr)) {
    if (command->get_name() == name) return *command;
    names.push_back(command->get_name());
  }
  throw Error(
      ErrorCode::invalid_argument, fmt::format("there is no command '{}'", shortened(name)),
      names.empty() ? parent.get_name() + " has no commands" : names_there_are(name, names));
}

int print_help(const CLI::App& app, const std::vector<std::string>& words) {
  if (words == std::vector<std::string>{kExitStatus}) {
    print_exit_statuses();
    return kDone;
  }
  if (!words.empty() && words.front() == kRecipes && words.size() <= 2) {
    if (words.size() == 1)
      print_recipes();
    else
      terminal::print("{}", command::find_recipe(words[1]).json);
    return kDone;
  }
  const CLI::App* command = &app;
  std::string parents;
  for (const std::string& word : words) {
    parents += (parents.empty() ? "" : " ") + command->get_name();
    command = &command_in(*command, word);
  }
  // `shoal train` has a table of options of its own.
  if (words == std::vector<std::string>{"train"}) return command::train({"--help"}, add_sources);
  terminal::write(stdout, words.empty() ? app.get_formatter()->make_help(&app, "shoal", {})
                                        : command->help(parents));
  return kDone;
}

}  // namespace

void add_help(CLI::App& app, Action& action) {
  auto* help = app.add_subcommand(
      "help",
      "Help on a command, as its --help; on exit-status, the statuses of all programs; on recipes, "
      "the option files that are built in");
  auto words = std::make_shared<std::vector<std::string>>();
  help->add_option("command", *words, "such as train, or data prepare");
  help->callback(
      [&app, &action, words] { action = [&app, words] { return print_help(app, *words); }; });
}

}  // namespace shoal::app
