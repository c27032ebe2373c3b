// shoal: train, generate, tokenizer, data, checkpoint, report, scale, jobs, env, diagnose, doctor,
// submit, version.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "commands.h"
#include "core_files.h"
#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/signal_thread.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::app {

void report_error(const std::string& command, const std::string& text) {
  std::fflush(stdout);
  terminal::print(stderr, "{}: {}\n", command, text);
}

int report_environment(const std::string& command) {
  const std::vector<std::string> problems = env::problems();
  for (const std::string& problem : problems) report_error(command, problem);
  return problems.empty() ? 0 : 1;
}

void print_json(const nlohmann::ordered_json& value, int indent) {
  using nlohmann::ordered_json;
  terminal::print("{}\n", value.dump(indent, ' ', false, ordered_json::error_handler_t::replace));
}

namespace {

// "shoal data prepare: there is no option '--ouput'; did you mean --output? ..."
void report_parse_error(const CLI::App& top, const CLI::ParseError& problem) {
  const CLI::App* command = &top;
  std::string name = top.get_name();
  for (auto chosen = top.get_subcommands(); !chosen.empty(); chosen = command->get_subcommands()) {
    command = chosen.front();
    name += " " + command->get_name();
  }
  std::vector<std::string> commands, options;
  for (const CLI::App* sub : command->get_subcommands(nullptr)) commands.push_back(sub->get_name());
  for (const CLI::Option* option : command->get_options())
    for (const std::string& word : option->get_lnames()) options.push_back("--" + word);
  std::string text = problem.what();
  if (const auto extra = top.remaining(true); !extra.empty()) {
    const bool is_option = extra.front().starts_with("-");
    const std::string meant = did_you_mean(extra.front(), is_option ? options : commands);
    text = fmt::format("there is no {} '{}'{}{}", is_option ? "option" : "command", extra.front(),
                       meant.empty() ? "" : "; ", meant);
  } else if (!commands.empty() && command->get_subcommands().empty()) {
    text = fmt::format("a command is needed: {}", fmt::join(commands, ", "));
  }
  report_error(name, fmt::format("{} (`{} --help` lists what there is)", text, name));
}

int run(int argc, char** argv) {
  CLI::App app{"Shoal trains transformer models, on one rank or on many.", "shoal"};
  app.require_subcommand(1);
  app.set_version_flag("--version", SHOAL_VERSION);
  Action action;
  add_train(app, action);
  add_generate(app, action);
  add_tokenizer(app, action);
  add_data(app, action);
  add_checkpoint(app, action);
  add_report(app, action);
  add_scale(app, action);
  add_jobs(app, action);
  add_env(app, action);
  add_diagnose(app, action);
  add_doctor(app, action);
  add_submit(app, action);
  app.add_subcommand("version", "Print the version")->callback([&] {
    action = [] {
      terminal::print("shoal " SHOAL_VERSION "\n");
      return 0;
    };
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& problem) {
    report_parse_error(app, problem);
    return 2;
  }
  for (const std::string& name : env::unknown())
    log::warn("{} is set, but no part of Shoal reads it; `shoal env` lists what is read", name);
  return action();
}

}  // namespace
}  // namespace shoal::app

int main(int argc, char** argv) {
  shoal::app::forbid_core_files_of_secrets();
  shoal::restart_with_short_spins(argv);
  shoal::take_back_interrupts();
  // Writing beyond a file size limit or to a closed pipe fails instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const std::string command = argc > 1 ? std::string("shoal ") + argv[1] : "shoal";
  try {
    const int status = shoal::app::run(argc, argv);
    // Unwritten output is an error, unless the pipe's reader stopped reading.
    if (status == 0 && std::fflush(stdout) != 0 && errno != EPIPE)
      shoal::throw_error(shoal::ErrorCode::io, "cannot write to standard output: {}",
                         std::strerror(errno));
    return status;
  } catch (const shoal::Error& error) {
    shoal::app::report_error(command, error.what());
  } catch (const std::bad_alloc&) {
    shoal::app::report_error(command, "out of memory");
  } catch (const std::exception& error) {
    shoal::app::report_error(command, std::string("unexpected: ") + error.what());
  }
  return 1;
}
