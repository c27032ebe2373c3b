#include "parse_problem.h"

#include <sstream>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::app {
namespace {

const CLI::App& chosen_in(const CLI::App& top) {
  const CLI::App* command = &top;
  for (auto chosen = top.get_subcommands(); !chosen.empty(); chosen = command->get_subcommands())
    command = chosen.front();
  return *command;
}

}  // namespace

std::string command_of(const CLI::App& top) {
  std::string name = top.get_name();
  const CLI::App* command = &top;
  for (auto chosen = top.get_subcommands(); !chosen.empty(); chosen = command->get_subcommands()) {
    command = chosen.front();
    name += " " + command->get_name();
  }
  return name;
}

std::string parse_problem(const CLI::App& top, const CLI::ParseError& problem) {
  const CLI::App& command = chosen_in(top);
  std::vector<std::string> commands, options;
  for (const CLI::App* sub : command.get_subcommands(nullptr)) commands.push_back(sub->get_name());
  for (const CLI::Option* option : command.get_options())
    for (const std::string& word : option->get_lnames()) options.push_back("--" + word);
  std::string text = problem.what();
  // Left-over words are an error unless the command forwards them.
  const auto extra = command.get_allow_extras() ? std::vector<std::string>() : top.remaining(true);
  const bool is_value = dynamic_cast<const CLI::ConversionError*>(&problem) != nullptr ||
                        dynamic_cast<const CLI::ValidationError*>(&problem) != nullptr;
  if (!extra.empty() && !is_value) {
    const bool is_option = extra.front().starts_with("-");
    const std::string meant = did_you_mean(extra.front(), is_option ? options : commands);
    const char* kind = is_option ? "option" : commands.empty() ? "argument" : "command";
    text = fmt::format("there is no {} '{}'{}{}", kind, shortened(extra.front()),
                       meant.empty() ? "" : "; ", meant);
  } else if (!commands.empty() && command.get_subcommands().empty()) {
    text = fmt::format("a command is needed: {}", fmt::join(commands, ", "));
  }
  return fmt::format("{} (`{} --help` lists what there is)", shortened(text, 1000),
                     command_of(top));
}

int show_answer(const CLI::App& top, const CLI::Success& answer) {
  std::ostringstream out;
  const int status = top.exit(answer, out, out);
  terminal::write(stdout, out.str());
  return status;
}

}  // namespace shoal::app
