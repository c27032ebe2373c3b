// shoal: train, generate, tokenizer, data, report, env, doctor, version.
#include <csignal>
#include <cstdio>

#include "commands.h"

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::app {

void report_error(const std::string& command, const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", command.c_str(), text.c_str());
}

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Shoal trains transformer models, on one rank or on many.", "shoal"};
  app.require_subcommand(1);
  app.set_version_flag("--version", SHOAL_VERSION);
  Action action;
  add_train(app, action);
  add_generate(app, action);
  add_tokenizer(app, action);
  add_data(app, action);
  add_report(app, action);
  add_env(app, action);
  add_doctor(app, action);
  app.add_subcommand("version", "Print the version")->callback([&] {
    action = [] {
      std::puts("shoal " SHOAL_VERSION);
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
    report_error("shoal", std::string(problem.what()) + "; `shoal --help` lists what there is");
    return 2;
  }
  for (const std::string& name : env::unknown())
    log::warn("{} is set, but no part of Shoal reads it; `shoal env` lists what is read", name);
  return action();
}

}  // namespace
}  // namespace shoal::app

int main(int argc, char** argv) {
  shoal::restart_with_short_spins(argv);
  // A file beyond a limit, and a pipe that nobody reads, are errors of write(), not deaths.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  const std::string command = argc > 1 ? std::string("shoal ") + argv[1] : "shoal";
  try {
    return shoal::app::run(argc, argv);
  } catch (const shoal::Error& error) {
    shoal::app::report_error(command, error.what());
  } catch (const std::bad_alloc&) {
    shoal::app::report_error(command, "out of memory");
  } catch (const std::exception& error) {
    shoal::app::report_error(command, std::string("unexpected: ") + error.what());
  }
  return 1;
}
