// Errors in command lines, for all programs that parse with CLI11.
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
class Success;
}  // namespace CLI

namespace shoal::app {

// The program and the subcommands on the command line: "shoal data prepare".
std::string command_of(const CLI::App& top);

// "there is no option '--ouput'; did you mean --output? (`shoal data prepare --help` lists what
// there is)"
std::string parse_problem(const CLI::App& top, const CLI::ParseError& problem);

// Prints the output of --help or --version; returns the exit status.
int show_answer(const CLI::App& top, const CLI::Success& answer);

}  // namespace shoal::app
