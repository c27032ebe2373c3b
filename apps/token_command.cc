// shoal token: writes the secret by which the ranks of a job admit each other.
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "commands.h"
#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/rendezvous/job_token.h"

namespace shoal::app {
namespace {

int write_token(const std::string& path) {
  // New, so that the token of a running job is not replaced, and only its owner may read it.
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const std::string text = JobToken::make();
  if (file.get() < 0 ||
      ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(file.get()) != 0)
    throw_error(ErrorCode::io, "cannot write a token to {}: {}", path, std::strerror(errno));
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
