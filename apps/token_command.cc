// shoal token: writes the secret by which the ranks of a job admit each other.
#include <memory>
#include <string>

#include "commands.h"
#include <CLI/CLI.hpp>

#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/rendezvous/job_token.h"

namespace shoal::app {
namespace {

int write_token(const std::string& path) {
  JobToken::write_new(path);
  terminal::print("{}: copy it to every host; mpirun -x SHOAL_JOB_TOKEN_FILE={} ...\n", path, path);
  return 0;
}

}  // namespace

void add_token(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "token", "Write a job token: the secret by which ranks on several hosts admit each other");
  auto path = std::make_shared<std::string>();
  command->add_option("file", *path, "a file that does not exist yet")->required();
  command->callback([&action, path] { action = [path] { return write_token(*path); }; });
}

}  // namespace shoal::app
