#include "shoal/sagemaker/container/run.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/runtime/rendezvous/job_token.h"
#include "shoal/sagemaker/container/launch.h"
#include "shoal/sagemaker/container/outputs.h"
#include "shoal/sagemaker/container/script.h"
#include "shoal/sagemaker/container/ssh_keys.h"
#include "shoal/sagemaker/job/secrets.h"
#include "shoal/sagemaker/process/process.h"

extern char** environ;

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;

void say(std::string_view line) {
  terminal::print("train: {}\n", line);
  std::fflush(stdout);
}

using FanOuts = std::vector<std::unique_ptr<PipeFanOut>>;

// The first failure, before the job was stopped, of a channel that ranks of this host read.
std::optional<std::string> failure_of(const FanOuts& fan_outs) {
  for (const auto& one : fan_outs)
    if (auto failure = one->failure()) return failure;
  return std::nullopt;
}

// Exit status of a host stopped before it was done. Throws an earlier failure, since SageMaker
// should report that as the reason.
int stopped_by(int signal, const FanOuts& fan_outs) {
  if (const auto failure = failure_of(fan_outs)) throw Error(ErrorCode::io, *failure);
  return 128 + signal;
}

// Unpacks the job's code into code/ of `place` and returns its directory.
std::string unpack_code(const Contract& c, const ContainerOptions& options,
                        const std::string& place, const std::string& region) {
  const auto found = c.settings.find("sagemaker_submit_directory");
  if (found == c.settings.end() || !found->is_string()) return c.path("code");
  auto from = found->get<std::string>();
  if (is_directory(from)) return from;
  const std::string code = place + "/code";
  make_directories(code);
  if (from.starts_with("s3://")) {
    if (!options.fetch)
      throw Error(
          ErrorCode::unavailable,
          fmt::format("the code is in S3 ({}), which this program does not read", shortened(from)),
          "set enable_network_isolation, with which SageMaker brings it");
    const std::string archive = place + "/sourcedir.tar.gz";
    options.fetch(from, archive, region);
    from = archive;
  } else if (constexpr std::string_view kRoot = "/opt/ml"; from.starts_with(kRoot)) {
    from = c.root + from.substr(kRoot.size());
  }
  const ProcessResult unpacked =
      run_process({"tar", "--extract", "--force-local", "--file", from, "--directory", code,
                   "--no-same-owner", "--no-same-permissions"});
  if (unpacked.status != 0)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("the code, {}, cannot be unpacked: {}", shortened(from),
                            unpacked.error.substr(0, unpacked.error.find('\n'))));
  return code;
}

// This process's variables, as NAME=value.
std::vector<std::string> own_variables() {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    all.emplace_back(*entry);
  return all;
}

std::vector<std::string> names_of(const Variables& variables) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : variables) names.push_back(name);
  for (const std::string& entry : own_variables()) {
    const std::string name = entry.substr(0, entry.find('='));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

void hide(Json& group) {
  for (auto& [name, value] : group.items())
    if (value.is_string() ? holds_secret(name, value.get_ref<const std::string&>())
                          : is_name_of_secret(name))
      value = "***";
    else if (value.is_structured())
      hide(value);
}

// Hides secrets in the shown output, where user hyperparameters and framework parameters appear
// several times.
void hide_secrets(Contract& c) {
  hide(c.hyperparameters);
  hide(c.framework_parameters);
}

void show(const Contract& c, const Launch& launch, const Variables& variables) {
  Json shown = {{"role", std::string(to_string(launch.role))},
                {"host", c.current_host},
                {"command", launch.words}};
  OrderedFields environment;
  for (const auto& [name, value] : variables) environment[name] = value;
  shown["environment"] = std::move(environment).json();
  terminal::print("{}\n", shown.dump(2, ' ', false, Json::error_handler_t::replace));
}

// File through which the first host reports the ending to the others.
std::string ending_file(const Contract& c) { return c.path("output/first-host-ended"); }

// The secret by which the job's ranks admit each other (docs/guides/security.md), on every host.
std::string token_file(const ContainerOptions& options) {
  return options.hosts.keys + "/job-token";
}

void share_job_token(const std::vector<std::string>& workers, const ContainerOptions& options) {
  const std::string path = token_file(options);
  const auto missed = send_file(workers, JobToken::write_new(path), path, options.hosts);
  if (!missed.empty())
    throw Error(ErrorCode::unavailable,
                fmt::format("host {} could not be given the job's token by ssh", missed.front()),
                "look at the log of that host");
}

void tell_workers(const Contract& c, const Launch& launch, const ContainerOptions& options,
                  const Ending& ending) {
  if (launch.role != HostRole::mpi_master || launch.hosts.size() < 2) return;
  const std::vector<std::string> workers(launch.hosts.begin() + 1, launch.hosts.end());
  for (const std::string& host : tell_ending(workers, ending_file(c), ending, options.hosts))
    say(fmt::format("host {} could not be told how this one ended", host));
}

// Runs a worker: serves ssh for mpirun until mpirun is done. The ranks get this container's
// environment, overridden by the variables that mpirun forwards.
int serve_mpirun(const Contract& c, const ContainerOptions& options, const FanOuts& fan_outs,
                 const std::atomic<int>& stop) {
  const LoginVariables login = login_variables(own_variables());
  for (const std::string& name : login.left_out)
    say(fmt::format("ranks of this host do not get the variable {}: sshd cannot give its value",
                    name));
  make_ssh_key(options.hosts);
  wait_for_hosts({c.master_host}, options.hosts, stop);
  if (stop == 0) admit_host(c.master_host, login, options.hosts, stop);
  if (stop != 0) return stopped_by(stop, fan_outs);
  start_sshd(options.hosts);
  const auto ending =
      wait_for_mpirun_to_end(options.hosts, ending_file(c), stop, options.grace_seconds,
                             [&fan_outs] { return failure_of(fan_outs).has_value(); });
  const bool is_done = ending && ending->status == 0;
  // A channel that ranks here read has failed. Throwing ends this container, and with it those
  // ranks.
  if (const auto failure = failure_of(fan_outs); failure && !is_done)
    throw Error(ErrorCode::io, *failure);
  if (stop != 0 && !is_done) return 128 + stop;
  if (!ending) {
    say(fmt::format("mpirun is done here; host {} did not say how", c.master_host));
    return 0;
  }
  if (ending->status == 0 || ending->reason.empty()) return ending->status;
  const std::string reason = fmt::format("host {}: {}", c.master_host, ending->reason);
  write_failure(c.path("output"), reason);
  say("failed: " + reason);
  return ending->status;
}

std::string reason_of_command(const TrainCommand& command, const ProcessResult& result) {
  return command.script.empty() ? reason_of(result.error, result.status)
                                : reason_of_script(command.script, result.error, result.status);
}

// Logs how the command ended after a stop, and the state of output_dir. `shoal train` saves, then
// exits with 128 + signal.
void say_stopped(const ProcessResult& result, const TrainCommand& command, double grace_seconds,
                 int signal) {
  const bool in_order = result.status == 128 + SIGTERM || result.status == 128 + SIGUSR1;
  const std::string& output_dir = command.output_dir;
  if (!command.script.empty())
    say(result.was_killed
            ? fmt::format("killed after {:.0f} s of grace", grace_seconds)
            : fmt::format("stopped by signal {}; {} has ended", signal, command.script));
  else if (result.was_killed)
    say(fmt::format("killed after {:.0f} s of grace; the last checkpoint in {} holds",
                    grace_seconds, output_dir));
  else if (in_order)
    say(fmt::format("stopped by signal {}; {} holds the run", signal, output_dir));
  else if (result.status == 0)
    say(fmt::format("stopped by signal {} before training began; what {} had holds", signal,
                    output_dir));
  else
    say(
        fmt::format("stopped by signal {}, but not in order: {}; the last whole checkpoint in {} "
                    "holds",
                    signal, reason_of_command(command, result), output_dir));
}

// Runs the command to its end. Exports the model of `shoal train` if rank 0 ran here; a script
// writes its own.
int run_command(const Contract& c, const Launch& launch, const TrainCommand& command,
                const Variables& variables, const FanOuts& fan_outs,
                const ContainerOptions& options, const std::atomic<int>& stop) {
  ProcessOptions how;
  for (const auto& [name, value] : variables) how.environment.push_back(name + "=" + value);
  how.directory = command.directory;
  how.passes_on_errors = true;
  how.stop = &stop;
  // mpirun kills ranks one second after SIGTERM, but forwards SIGUSR1, which ranks handle. Before
  // ranks exist, SIGUSR1 would be forwarded to no process and mpirun would continue.
  if (launch.role == HostRole::mpi_master)
    how.choose_stop = [&command] {
      bool runs = false;
      best_effort("look for the ranks", [&] { runs = process_runs(command.rank_name); });
      return runs ? SIGUSR1 : SIGTERM;
    };
  how.grace_seconds = options.grace_seconds;
  how.gives_up = [&fan_outs] { return failure_of(fan_outs).has_value(); };
  const auto began = fs::file_time_type::clock::now();
  const ProcessResult result = run_process(launch.words, how);
  const bool exports = command.script.empty() && launch.is_rank_0;
  // The command may have ended by itself just as it was stopped. (mpirun also returns 0 if the
  // signal arrived while it was starting ranks, and a script may end with 0 when it is stopped.)
  const bool is_done =
      result.status == 0 &&
      (command.script.empty() ? !exports || has_model_since(command.output_dir, began)
                              : !result.was_stopped);
  const auto lost_input = is_done ? std::nullopt : failure_of(fan_outs);
  if (result.was_stopped && !is_done && !lost_input) {
    say_stopped(result, command, options.grace_seconds, stop);
    tell_workers(c, launch, options, {.status = 128 + stop});
    return 128 + stop;
  }
  if (result.status != 0 || lost_input) {
    const std::string reason = lost_input ? *lost_input : reason_of_command(command, result);
    const int status = result.status == 0 ? kFailed : result.status;
    write_failure(c.path("output"), reason);
    say("failed: " + reason);
    tell_workers(c, launch, options, {.status = status, .reason = reason});
    return status;
  }
  tell_workers(c, launch, options, {});
  if (exports) {
    const auto names = export_model(command.output_dir, c.path("model"));
    say(fmt::format("{} files of the model are in {}", names.size(), c.path("model")));
  }
  return 0;
}

// True if CUDA_VISIBLE_DEVICES hides all GPUs; `shoal train` then uses the CPU.
bool hides_gpus(const VariableReader& variables) {
  const auto visible = variables("CUDA_VISIBLE_DEVICES");
  return visible && (visible->empty() || *visible == "-1");
}

int run_host(const ContainerOptions& options, const std::atomic<int>& stop) {
  const VariableReader environment = process_variables();
  Contract c = read_contract(options.root, find_hardware(), environment);
  if (options.only_shows) hide_secrets(c);
  Variables variables = sm_variables(c, environment);
  const std::string region = region_for_s3(c, environment);
  if (!region.empty()) variables.emplace_back("AWS_REGION", region);
  // A dry run leaves no files in root, so it unpacks the code elsewhere to read its options.
  std::optional<ScratchDirectory> aside;
  if (options.only_shows) aside.emplace();
  const std::string code = unpack_code(c, options, aside ? aside->path() : c.root, region);
  TrainCommand command = train_command(
      c,
      {.shoal = options.shoal, .python = options.python, .train = canonical_path("/proc/self/exe")},
      code);
  const bool is_aside = aside && code == *aside / "code";
  if (is_aside)
    for (std::string& word : command.words)
      if (word.starts_with(code + "/")) word = c.path("code") + word.substr(code.size());
  if (!command.script.empty())
    for (auto& variable : script_variables(c, is_aside ? c.path("code") : code, environment))
      variables.push_back(std::move(variable));
  if (has_distribution(c) && c.hosts.size() > 1)
    variables.emplace_back(env::kJobToken.name, token_file(options));
  const Launch launch = plan_launch(c, command,
                                    {.mpirun = options.mpirun,
                                     .forwarded = names_to_forward(names_of(variables)),
                                     .ssh = ssh_options(options.hosts)});
  if (options.only_shows) {
    show(c, launch, variables);
    return 0;
  }
  say(fmt::format("host {} of {}, {}", c.current_host, c.hosts.size(), to_string(launch.role)));
  if (command.script.empty()) make_directories(command.output_dir);
  make_directories(c.path("output/data"));
  if (launch.role == HostRole::idle) return 0;
  if (options.trains_on_gpus && !hides_gpus(environment)) check_gpus(c, command);
  remove_file(ending_file(c));
  if (!command.script.empty()) prepare_script(command.script, code, options.python, stop);
  FanOuts fan_outs;
  for (const PipedChannel& channel : command.pipes)
    if (channel.file.empty())
      fan_outs.push_back(std::make_unique<PipeFanOut>(channel, stop));
    else
      copy_to_file(channel, stop);
  if (stop != 0) return stopped_by(stop, fan_outs);
  if (launch.role == HostRole::mpi_worker) return serve_mpirun(c, options, fan_outs, stop);
  for (const std::string& note : command.notes) say("filled in: " + note);
  if (launch.role == HostRole::mpi_master && launch.hosts.size() > 1) {
    make_ssh_key(options.hosts);
    start_sshd(options.hosts);
    std::vector<std::string> workers(launch.hosts.begin() + 1, launch.hosts.end());
    wait_for_hosts(workers, options.hosts, stop);
    if (stop == 0) share_job_token(workers, options);
  }
  if (stop != 0) return stopped_by(stop, fan_outs);  // stopped before training began
  return run_command(c, launch, command, variables, fan_outs, options, stop);
}

}  // namespace

int run_container(const ContainerOptions& options, const std::atomic<int>& stop) {
  try {
    return run_host(options, stop);
  } catch (const std::exception& caught) {
    const Error error = error_of(caught);
    // This error is a result of the stop.
    if (stop != 0 && error.code() == ErrorCode::aborted) return 128 + stop;
    if (!options.only_shows) write_failure(options.root + "/output", error.what());
    terminal::print(stderr, "train: {}\n", error.what());
    return exit_status(error.code());
  }
}

}  // namespace shoal::sagemaker
