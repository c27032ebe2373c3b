#include "parse_problem.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::app {
namespace {

// Words of other programs, or of everyday speech, for commands and options of ours.
constexpr std::pair<std::string_view, std::string_view> kSynonyms[] = {
    {"finetune", "train"},
    {"fit", "train"},
    {"pretrain", "train"},
    {"run", "train"},
    {"infer", "predict"},
    {"inference", "predict"},
    {"classify", "predict"},
    {"label", "predict"},
    {"test", "evaluate"},
    {"eval", "evaluate"},
    {"sample", "generate"},
    {"complete", "generate"},
    {"chat", "generate"},
    {"tokenize", "tokenizer"},
    {"prepare", "data"},
    {"convert", "checkpoint"},
    {"inspect", "checkpoint"},
    {"benchmark", "study"},
    {"scale", "study"},
    {"check", "doctor"},
    {"launch", "submit"},
    {"status", "jobs"},
    {"--max-tokens", "--max-new-tokens"},
    {"--max-length", "--max-new-tokens"},
    {"--out", "--output"},
    {"--checkpoint", "--model"},
    {"--batch-size", "--per-device-eval-batch-size"},
    {"--bs", "--per-device-eval-batch-size"}};

// "did you mean train?"; empty if none of `names` is like `given`.
std::string meant_by(const std::string& given, const std::vector<std::string>& names) {
  std::string plain = given;
  for (char& c : plain)
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [word, name] : kSynonyms)
    if (plain == word && std::ranges::find(names, name) != names.end())
      return fmt::format("did you mean {}?", name);
  return did_you_mean(given, names);
}

// "--vocab-size is abc; it takes a whole number" of "Could not convert: --vocab-size = abc".
std::string conversion_problem(const CLI::App& command, const std::string& text) {
  constexpr std::string_view kBefore = "Could not convert: ", kBetween = " = ";
  const std::size_t between = text.find(kBetween);
  if (!text.starts_with(kBefore) || between == text.npos) return text;
  const std::string name = text.substr(kBefore.size(), between - kBefore.size());
  const CLI::Option* const option = command.get_option_no_throw(name);
  const std::string type = option == nullptr ? "" : option->get_type_name();
  const char* const takes = type.starts_with("INT")    ? "a whole number"
                            : type.starts_with("UINT") ? "a whole number of at least 0"
                                                       : "a number";
  return fmt::format("{} is {}; it takes {}", name, text.substr(between + kBetween.size()), takes);
}

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
  std::string text = conversion_problem(command, problem.what());
  // Left-over words are an error unless the command forwards them.
  const auto extra = command.get_allow_extras() ? std::vector<std::string>() : top.remaining(true);
  const bool is_value = dynamic_cast<const CLI::ConversionError*>(&problem) != nullptr ||
                        dynamic_cast<const CLI::ValidationError*>(&problem) != nullptr;
  if (!extra.empty() && !is_value) {
    const bool is_option = extra.front().starts_with("-");
    const std::string meant = meant_by(extra.front(), is_option ? options : commands);
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
