// shoal train CONFIG.json [--option value ...]
#include "commands.h"
#include "hub.h"
#include "sources.h"
#include <CLI/CLI.hpp>

#include "shoal/train/command/train.h"

namespace shoal::app {

void add_train(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("train", "Train or fine-tune a model");
  command->set_help_flag();
  command->set_help_all_flag();
  command->prefix_command();
  command->callback([&action, command] {
    action = [command] { return command::train(command->remaining(), add_sources, fetch_model); };
  });
}

}  // namespace shoal::app
