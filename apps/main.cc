// shoal: train, predict, evaluate, generate, tokenizer, data, checkpoint, report, study, jobs, env,
// diagnose, doctor, submit, plan, token, help, version.
#include <csignal>
#include <cstdio>

#include "command_line.h"
#include "commands.h"
#include "core_files.h"
#include "parse_problem.h"
#include "run_main.h"
#include "version.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "shoal/collectives/select/algorithm_selector.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/mapped_faults.h"

namespace shoal::app {

int report_environment(const std::string& command) {
  std::vector<std::string> problems = env::problems();
  try {
    (void)collectives::make_selector({});  // reads SHOAL_COLLECTIVES
  } catch (const Error& problem) {
    problems.emplace_back(problem.what());
  }
  for (const std::string& problem : problems) report_error(command, problem);
  return problems.empty() ? kDone : kWrongOptions;
}

void print_json(const nlohmann::ordered_json& value, int indent) {
  using nlohmann::ordered_json;
  terminal::print("{}\n", value.dump(indent, ' ', false, ordered_json::error_handler_t::replace));
}

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Shoal trains transformer models, on one rank or on many.", "shoal"};
  set_help_style(app);
  app.require_subcommand(1);
  app.set_version_flag("--version", "shoal " + version_and_build(), "Print the version and exit");
  Action action;
  add_train(app, action);
  add_predict(app, action);
  add_evaluate(app, action);
  add_generate(app, action);
  add_tokenizer(app, action);
  add_data(app, action);
  add_checkpoint(app, action);
  add_report(app, action);
  add_study(app, action);
  add_jobs(app, action);
  add_env(app, action);
  add_diagnose(app, action);
  add_doctor(app, action);
  add_submit(app, action);
  add_plan(app, action);
  add_token(app, action);
  add_help(app, action);
  app.add_subcommand("version", "Print the version")->callback([&] {
    action = [] {
      terminal::print("shoal {}\n", version_and_build());
      return 0;
    };
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answer) {  // --help, --version
    return show_answer(app, answer);
  } catch (const CLI::ParseError& problem) {
    report_error(command_of(app), parse_problem(app, problem));
    return kWrongOptions;
  }
  for (const std::string& name : env::unknown())
    log::warn("{} is set, but no part of Shoal reads it; `shoal env` lists what is read", name);
  const std::string command = app.get_subcommands().front()->get_name();
  // `env` and `doctor` report wrong variables themselves.
  if (command != "env" && command != "doctor" && command != "help")
    if (const int status = report_environment("shoal " + command); status != kDone) return status;
  return action();
}

}  // namespace
}  // namespace shoal::app

int main(int argc, char** argv) {
  shoal::app::forbid_core_files_of_secrets();
  shoal::restart_with_short_spins(argv);
  shoal::name_files_that_bus_errors_hit();
  // Writing beyond a file size limit or to a closed pipe fails instead of killing the process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  return shoal::app::run_main(argc > 1 ? std::string("shoal ") + argv[1] : "shoal",
                              [&] { return shoal::app::run(argc, argv); });
}
