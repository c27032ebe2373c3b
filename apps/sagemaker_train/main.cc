// train: the entry point of a SageMaker training image. SageMaker starts it without arguments; the
// options are for tests elsewhere.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "command_line.h"
#include "core_files.h"
#include "fetch.h"
#include "parse_problem.h"
#include "run_main.h"
#include "version.h"
#include <CLI/CLI.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/container/rank.h"
#include "shoal/sagemaker/container/run.h"

namespace {

// Global, because a signal handler has no other way to reach it.
std::atomic<int> stop_signal{0};

extern "C" void on_stop_signal(int number) { stop_signal = number; }

int run(int argc, char** argv) {
  using shoal::sagemaker::ContainerOptions;
  ContainerOptions options;
  options.trains_on_gpus = SHOAL_BUILDS_CUDA;
  // Amazon's toolkit reads the same variable.
  if (const char* root = std::getenv("SAGEMAKER_BASE_DIR"); root != nullptr && *root != '\0')
    options.root = root;
  CLI::App app{
      "Runs this host's part of a SageMaker training job: reads /opt/ml, starts `shoal train` or "
      "the job's Python script (with "
      "mpirun where the job asks for it), leaves the model in model/ or the reason in "
      "output/failure. SIGTERM saves a checkpoint first.",
      "train"};
  shoal::app::set_help_style(app);
  app.set_version_flag("--version", "train " + shoal::app::version_and_build(),
                       "Print the version and exit");
  app.add_option("--prefix", options.root, "instead of /opt/ml (or SAGEMAKER_BASE_DIR)");
  app.add_flag("--dry-run", options.only_shows,
               "print this host's role, command and SM_ variables; start nothing, write nothing");
  app.add_option("--shoal", options.shoal, "the program that trains");
  app.add_option("--python", options.python, "the program that runs an entry point in Python");
  app.add_option("--for-gpus", options.trains_on_gpus,
                 "whether that is a build for GPUs, as this one is or is not (true, false)");
  app.add_option("--mpirun", options.mpirun, "the program that starts ranks");
  app.add_option("--sshd", options.hosts.sshd, "the program by which mpirun reaches this host");
  app.add_option("--ssh", options.hosts.ssh,
                 "the program by which it gives hosts the job token and tells them how it ended");
  app.add_option("--ssh-keygen", options.hosts.ssh_keygen,
                 "the program that makes this host's key");
  app.add_option("--ssh-keyscan", options.hosts.ssh_keyscan,
                 "the program that asks the first host's");
  app.add_option("--ssh-keys", options.hosts.keys, "a folder for them, made anew");
  app.add_option("--ssh-port", options.hosts.ssh_port, "where the other hosts serve ssh");
  app.add_option("--orted", options.hosts.orted, "mpirun's process on a worker");
  app.add_option("--poll-seconds", options.hosts.poll_seconds, "between looks at other hosts");
  app.add_option("--connect-seconds", options.hosts.connect_seconds, "for all hosts to come");
  app.add_option("--start-seconds", options.hosts.start_seconds, "for mpirun to come to a worker");
  app.add_option("--quiet-seconds", options.hosts.quiet_seconds,
                 "without its process until mpirun is taken for done");
  app.add_option("--grace-seconds", options.grace_seconds,
                 "after SIGTERM, until the ranks are killed");
  shoal::app::rarely(
      app, {"--shoal", "--python", "--for-gpus", "--mpirun", "--sshd", "--ssh", "--ssh-keygen",
            "--ssh-keyscan", "--ssh-keys", "--ssh-port", "--orted", "--poll-seconds",
            "--connect-seconds", "--start-seconds", "--quiet-seconds", "--grace-seconds"});
  const CLI::App* const rank =
      app.add_subcommand(
             "rank",
             "runs COMMAND... as one rank of a Python script: sets torchrun's variables "
             "and passes a stop on; `train` has mpirun start it")
          ->prefix_command();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answer) {  // --help, --version
    return shoal::app::show_answer(app, answer);
  } catch (const CLI::ParseError& problem) {
    throw shoal::Error(shoal::ErrorCode::invalid_argument, shoal::app::parse_problem(app, problem));
  }
  if (rank->parsed()) {
    SHOAL_CHECK(rank->remaining_size() > 0, "rank needs a command");
    return shoal::sagemaker::run_rank(rank->remaining(), shoal::sagemaker::process_variables());
  }
  // For process 1 of a container, signals have no default action.
  for (const int number : {SIGTERM, SIGINT}) std::signal(number, on_stop_signal);
  std::signal(SIGPIPE, SIG_IGN);
  options.fetch = shoal::app::code_fetcher();
  return shoal::sagemaker::run_container(options, stop_signal);
}

}  // namespace

int main(int argc, char** argv) {
  shoal::app::forbid_core_files_of_secrets();
  return shoal::app::run_main("train", [&] { return run(argc, argv); });
}
