// What the command lines of all programs have in common: help in one style, and numbers in limits.
#pragma once

#include <initializer_list>
#include <string>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace shoal::app {

// --help shows the options of a command and names its commands; --help-all also shows those that
// rarely() has named. For a program's App, before its subcommands are added.
void set_help_style(CLI::App& app);
// Moves these options of a command to --help-all: {"--tokenizer", "--seed"}.
void rarely(CLI::App& command, std::initializer_list<const char*> options);

// For Option::check(). The message of a wrong number has the limits.
CLI::Validator from_to(double least, double most);
CLI::Validator at_least(double least);

}  // namespace shoal::app
